"""Sweeps: a directory for every job, finished ones are not done again, a failing one does not stop the others."""

import json
from pathlib import Path

from tests.system.runs import command, rows


def folders() -> list[Path]:
    return sorted(path for path in Path("outputs").glob("sweep-*/*") if path.is_dir())


def test_a_sweep_and_the_same_sweep_again(tiny):
    args = ["-m", *tiny, "algorithm=fedavg,fedmuon", "seed=0,1"]
    done = command(*args)
    assert done.returncode == 0, done.stderr
    runs = folders()
    assert len(runs) == 4 and {rows(run)[-1]["round"] for run in runs} == {3}
    table = [line for line in done.stdout.splitlines() if "finished" in line]
    assert len(table) == 4 and [str(run) in done.stdout for run in runs] == [True] * 4
    before = {file: file.stat().st_mtime_ns for run in runs for file in run.rglob("*")}
    again = command(*args)
    assert again.returncode == 0, again.stderr
    assert "round 1/3" not in again.stdout and "finished" in again.stdout
    assert before == {file: file.stat().st_mtime_ns for run in folders() for file in run.rglob("*")}


def test_a_failing_job_is_reported_and_the_others_go_on(tiny):
    done = command("-m", *tiny, "local.lr=1e30,0.01", "algorithm=fedavg")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "NaN or infinity" in done.stderr and "the others go on" in done.stderr
    status = sorted(json.loads((run / "summary.json").read_text())["status"] for run in folders())
    assert status == ["failed", "finished"]
    assert "failed" in done.stdout and "finished" in done.stdout


def test_a_failing_run_exits_with_one_and_names_its_directory(tiny):
    done = command(*tiny, "local.lr=1e30", "run_dir=run")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "run" in done.stderr and "client" in done.stderr and "round 1" in done.stderr
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["status"] == "failed" and "NaN or infinity" in summary["cause"]
