"""Sweeps: a directory for every job, finished ones are not done again, a failing one does not stop the others."""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from fedmuon import lock, rundir
from fedmuon.cli import checked_jobs
from fedmuon.errors import UsageError
from fedmuon.experiment import execute
from fedmuon.searching import tune
from fedmuon.tune import read
from tests.system.runs import assert_same_run, command, rows, sweep_here


def folders() -> list[Path]:
    return sorted(path for path in Path("outputs").glob("sweep-*/*") if path.is_dir())


def table_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "sweep.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_sweep_and_the_same_sweep_again(tiny, capfd):
    args = ["-m", *tiny, "algorithm=fedavg,fedmuon", "seed=0,1"]
    done = command(*args)
    assert done.returncode == 0, done.stderr
    runs = folders()
    assert len(runs) == 4 and {rows(run)[-1]["round"] for run in runs} == {3}
    lines = [line for line in done.stdout.splitlines() if "finished" in line]
    assert len(lines) == 4 and [str(run) in done.stdout for run in runs] == [True] * 4
    table = table_of(runs[0].parent)
    assert [(row["algorithm.name"], row["seed"]) for row in table] == [
        (a, s) for a in ("fedavg", "fedmuon") for s in "01"
    ]
    assert not {"local.lr", "partition.seed", "algorithm.beta"} & {*table[0]}  # they follow
    for row, run in zip(table, [runs[0].parent / row["job"] for row in table], strict=True):
        measured, summary = rows(run)[-1], json.loads((run / "summary.json").read_text())
        assert row["status"] == "finished" and float(row["last/test/accuracy"]) == measured["test/accuracy"]
        assert int(row["up_bytes"]) == summary["up_bytes"] and float(row["seconds"]) == summary["seconds"]
        assert float(row["best/val/accuracy"]) == summary["best"]["val/accuracy"]
    stored = pq.read_table(runs[0].parent / "sweep.parquet").to_pylist()
    assert [row["job"] for row in stored] == [row["job"] for row in table] and stored[1]["seed"] == 1
    before = {file: file.stat().st_mtime_ns for run in runs for file in run.rglob("*")}
    assert sweep_here(*args) == 0
    said = capfd.readouterr().out
    assert "round 1/3" not in said and "finished" in said
    assert before == {file: file.stat().st_mtime_ns for run in folders() for file in run.rglob("*")}


def test_a_sweep_again_that_is_computed_and_watched_otherwise_trains_nothing(tiny, capfd):
    args = ["-m", *tiny, "algorithm=fedavg", "seed=0,1"]
    assert sweep_here(*args, "engine.workers=1") == 0
    (folder,) = Path("outputs").iterdir()
    bar = "+callbacks.bar._target_=lightning.pytorch.callbacks.TQDMProgressBar"
    before = {run: (run / "metrics.jsonl").stat().st_mtime_ns for run in folders()}
    assert sweep_here(*args, "engine.workers=2", "trainer.max_time=01:00:00:00", "evaluation.targets=[0.0]") == 0
    assert sweep_here(*args, bar, f"hydra.sweep.dir={folder}", "trainer.profiler=simple") == 0
    assert before == {run: (run / "metrics.jsonl").stat().st_mtime_ns for run in folders()} and len(before) == 2
    assert "rounds_to/0" not in table_of(folder)[0], "the last of them asked for the first targets"
    assert sweep_here(*args, "evaluation.targets=[0.0]") == 0
    assert {row["rounds_to/0"] for row in table_of(folder)} == {"1"}


def test_a_failing_job_is_reported_and_the_others_go_on(tiny):
    done = command("-m", *tiny, "local.lr=1e30,0.01", "algorithm=fedavg")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "NaN or infinity" in done.stderr and "the others go on" in done.stderr
    status = sorted(json.loads((run / "summary.json").read_text())["status"] for run in folders())
    assert status == ["failed", "finished"]
    assert "failed" in done.stdout and "finished" in done.stdout


def test_a_job_that_cannot_begin_or_cannot_say_that_it_failed_is_told(tiny, monkeypatch, capfd):
    args = ["-m", *tiny, "algorithm=fedavg", "seed=0,1", "hydra.sweep.dir=out"]
    (first, second) = (job.folder for job in checked_jobs(args[1:], multirun=True))
    first.parent.mkdir()
    first.touch()
    written = rundir.write_json

    def write_json(path: Path, content: Any) -> None:
        if path.name == "summary.json" and content["status"] != "running":
            raise OSError(28, "No space left on device", str(path))
        written(path, content)

    monkeypatch.setattr(rundir, "write_json", write_json)
    assert sweep_here(*args) == 1
    said = capfd.readouterr().err
    assert f"fedmuon: {first}: cannot be made or locked (File exists)" in said
    assert f"fedmuon: {second}: " in said and "No space left on device" in said


def test_a_table_that_cannot_be_written_is_told_and_the_jobs_go_on(tiny, monkeypatch, capfd):
    def write_tables(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedmuon.sweep.write_tables", write_tables)
    assert sweep_here("-m", *tiny, "seed=0,1", "hydra.sweep.dir=out") == 1
    told = "out/sweep.csv: cannot be written (No space left on device)\n"
    out, err = capfd.readouterr()
    assert f"fedmuon: {told}" in err and out.endswith(told) and out.count("finished") == 2


def test_a_sweep_that_a_key_or_a_file_asks_for_is_one(tiny, capfd):
    assert sweep_here(*tiny, "hydra.mode=MULTIRUN", "seed=0,1", "local.lr=1e30", "hydra.sweep.dir=key") == 1
    assert capfd.readouterr().err.count("NaN or infinity") == 2
    mode = 'hydra: {mode: MULTIRUN, sweeper: {params: {seed: "0,1"}}}'
    Path("mine.yaml").write_text(f"defaults: [config, _self_]\n{mode}\n")
    own = ["--config-dir", ".", "--config-name", "mine"]
    assert sweep_here(*own, *tiny, "algorithm=fedavg,fedmuon", "hydra.sweep.dir=file") == 0
    assert [len(table_of(Path(folder))) for folder in ("key", "file")] == [2, 4]


@pytest.mark.parametrize("override", ["hydra.sweep.dir=mine", "++hydra.sweep.dir=mine", ""])
def test_the_folder_of_a_sweep_is_the_one_that_is_named(tiny, override):
    """By an override, with or without signs before its key, or by a file of one's own."""
    Path("mine.yaml").write_text("defaults: [config, _self_]\nhydra: {sweep: {dir: mine}}\n")
    named = [override] if override else ["--config-dir", ".", "--config-name", "mine"]
    assert sweep_here("-m", *named, *tiny, "federation.rounds=1") == 0
    assert len(table_of(Path("mine"))) == 1 and not Path("outputs").exists()


def test_how_a_sweep_is_launched_names_no_other_folder(tiny):
    for how in ("-m", "hydra.mode=MULTIRUN", "++hydra.mode=MULTIRUN"):
        assert sweep_here(how, *tiny, "federation.rounds=1") == 0
    assert len(folders()) == 1


def test_an_interrupted_sweep_says_how_the_sweep_goes_on(tiny, monkeypatch, capfd):
    def interrupted(job: Any) -> None:
        raise KeyboardInterrupt(f"interrupted; go on with resume={job.folder}")

    monkeypatch.setattr("fedmuon.experiment.execute", interrupted)
    assert sweep_here("-m", *tiny, "seed=0,1") == 130
    assert capfd.readouterr().err == "fedmuon: interrupted; the same command goes on\n"


def test_a_failing_run_exits_with_one_and_names_its_directory(tiny):
    done = command(*tiny, "local.lr=1e30", "run_dir=run")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "run" in done.stderr and "client" in done.stderr and "round 1" in done.stderr
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["status"] == "failed" and "NaN or infinity" in summary["cause"]


def test_a_sweep_killed_at_any_moment_ends_as_one_that_was_not(tiny):
    """The moment is another one in every call of the tests."""
    args = ["-m", *tiny, "federation.rounds=2", "algorithm=fedavg,fedmuon", "seed=range(0,6)"]
    assert sweep_here(*args, "hydra.sweep.dir=whole") == 0
    seed = time.time_ns()
    moments = random.Random(seed)
    lines, delay = moments.randrange(24), moments.random() * 0.1
    print(f"killed after {lines} lines and {delay:.3f} s (seed {seed})")
    process = subprocess.Popen(
        [sys.executable, "-m", "fedmuon", *args, "hydra.sweep.dir=cut"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None

    def written() -> int:
        return sum(file.read_bytes().count(b"\n") for file in Path("cut").glob("*/metrics.jsonl"))

    while process.poll() is None and (written() < lines or not Path("cut").exists()):
        time.sleep(0.001)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.stderr.close()
    assert sweep_here(*args, "hydra.sweep.dir=cut") == 0
    whole, cut = table_of(Path("whole")), table_of(Path("cut"))
    assert len(whole) == 12
    for a, b in zip(whole, cut, strict=True):
        assert {**a, "seconds": ""} == {**b, "seconds": ""} and a["status"] == "finished"
        assert_same_run(Path("whole", a["job"]), Path("cut", b["job"]))
    assert not [path for path in Path("cut").rglob(".*") if path.is_file()], "half-written files stay behind"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
@pytest.mark.parametrize("asked", ["trainer.accelerator=cuda", "engine=graph"])
def test_a_device_that_is_not_there_is_told_before_anything(tiny, capfd, asked):
    args = [one for one in tiny if not one.startswith("trainer.")]
    assert sweep_here("-m", *args, asked, "seed=0,1") == 2
    said = capfd.readouterr()
    assert said.err.startswith(f"fedmuon: {asked}: ") and said.err.count("\n") == 1
    with pytest.raises(UsageError, match=f"^{asked}: "):
        tune(read([*args, asked, "algorithm=fedavg", "n_trials=1"]))
    assert not any(Path().iterdir())
    (job,) = checked_jobs([*args, asked, "hydra.sweep.dir=out"], multirun=True)
    with pytest.raises(UsageError):
        execute(job)  # as on another machine: the job itself tells why it has not begun
    assert rundir.summary(job.folder)["cause"].startswith(f"{asked}: ")


def test_options_after_overrides_and_a_folder_named_by_the_time(tiny):
    """The time is another one whenever it is asked for; the folder is one, and the table is in it."""
    folder = "hydra.sweep.dir='a,b/${now:%H-%M-%S-%f}'"
    assert sweep_here("seed=0,1", folder, "-m", *tiny) == 0
    (found,) = Path("a,b").iterdir()
    assert [row["status"] for row in table_of(found)] == ["finished", "finished"]


def test_what_a_kill_leaves_of_a_job_that_had_not_begun(tiny):
    (job,) = checked_jobs([*tiny, "seed=3", "hydra.sweep.dir=out"], multirun=True)
    job.folder.mkdir(parents=True)
    (job.folder / ".config.yaml.4711").write_text("algo")
    assert execute(job).summary["status"] == "finished"
    assert not [path for path in job.folder.rglob(".*") if path.is_file()]


def test_a_job_that_waits_for_another_process_says_so_at_once(tiny):
    sweep = [*tiny, "-m", "seed=0", "hydra.sweep.dir=waits"]
    (job,) = checked_jobs([*tiny, "seed=0", "hydra.sweep.dir=waits"], multirun=True)
    job.folder.mkdir(parents=True)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with lock.held(job.folder):
        words = [sys.executable, "-m", "fedmuon", *sweep]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=env)
        assert process.stderr.readline() == f"{job.folder}: runs in another process; waiting for it\n"
    process.communicate(timeout=300)
    assert process.returncode == 0 and json.loads((job.folder / "summary.json").read_text())["status"] == "finished"


def test_two_sweeps_in_one_folder_run_every_job_once(tiny, capfd):
    """The second waits for the job that the first is at, and then only reads it."""
    (job,) = checked_jobs([*tiny, "seed=4", "hydra.sweep.dir=out"], multirun=True)
    others = [
        subprocess.Popen([sys.executable, "-m", "fedmuon", "-m", *tiny, "seed=4", "hydra.sweep.dir=out"])
        for _ in range(2)
    ]
    assert [other.wait(300) for other in others] == [0, 0]
    said = capfd.readouterr().out
    assert said.count("round 1/3") == 1 and [row["round"] for row in rows(job.folder)] == [1, 2, 3]


def test_jobs_of_a_process_leave_it_as_it_was(tiny, monkeypatch):
    monkeypatch.setenv("FEDMUON_TEST", "kept")
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)

    def state() -> tuple:
        return (
            torch.get_num_threads(),
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.backends.cudnn.benchmark,
            torch.get_rng_state().tolist(),
            random.getstate(),
            np.random.get_state()[1].tolist(),
            dict(os.environ),
            sorted(thread.name for thread in threading.enumerate() if not thread.daemon),
        )

    before = state()
    args = [*tiny, "trainer.deterministic=true", "trainer.precision=64-true", "trainer.benchmark=true"]
    assert sweep_here("-m", *args, "seed=0,1", "hydra.sweep.dir=out") == 0
    assert state() == before


def test_time_that_is_over_is_said(tiny, capsys):
    (job,) = checked_jobs([*tiny, "trainer.max_time=00:00:00:00", "hydra.sweep.dir=out"], multirun=True)
    summary, run = execute(job)
    assert summary["status"] == "timed_out" and summary["rounds"] < 3
    assert "trainer.max_time=00:00:00:00 was reached" in summary["cause"]
    before = {file: file.stat().st_mtime_ns for file in run.rglob("*")}
    assert execute(job).summary == summary
    assert before == {file: file.stat().st_mtime_ns for file in run.rglob("*")}


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_an_end_from_outside_interrupts_a_run(tiny, number):
    process = subprocess.Popen(
        [sys.executable, "-m", "fedmuon", *tiny, "federation.rounds=100000", "run_dir=run"],
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # also where the tests run under nohup
    )
    try:
        while process.poll() is None and not Path("run/metrics.jsonl").exists():
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(300) == 130
    finally:
        process.kill()
    assert json.loads(Path("run/summary.json").read_text())["status"] == "interrupted"


def test_a_reader_that_leaves_ends_no_run(tiny):
    shell = f"{sys.executable} -m fedmuon {' '.join(tiny)} run_dir=run | head -1"
    done = subprocess.run(shell, shell=True, capture_output=True, text=True, timeout=300)
    assert done.stdout.count("\n") == 1 and "Traceback" not in done.stderr and "interrupted" not in done.stderr
    assert json.loads(Path("run/summary.json").read_text())["status"] == "finished"
