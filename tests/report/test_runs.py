"""Run directories in every state are read; what is wrong with them is told, and ends nothing."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedmuon.errors import UsageError
from fedmuon.report.runs import QUIET, find, read_run, read_runs
from fedmuon.report.write import described, table
from tests.report.directories import write_run


def test_a_run_is_read(tmp_path):
    run = read_run(write_run(tmp_path / "a", [0.2, 0.4], seed=3))
    assert (run.status, run.name, run.seed, run.rounds, run.complete) == ("finished", "fedmuon-seed3", 3, 2, True)
    assert run.config["partition.concentration"] == 0.1 and run.config["evaluation.targets"] == [0.5, 0.9]
    assert run.column("test/accuracy").tolist() == [0.2, 0.4] and np.isnan(run.column("nothing")).all()
    assert run.problems == ()


def test_a_truncated_last_line_costs_one_round(tmp_path):
    path = write_run(tmp_path / "a", [0.1, 0.2, 0.3])
    file = path / "metrics.jsonl"
    file.write_bytes(file.read_bytes()[:-40])
    run = read_run(path)
    assert run.columns["round"].tolist() == [1, 2]
    assert run.problems == (f"{path}: metrics.jsonl: its last line is cut off",)


def test_a_finished_run_whose_metrics_end_early_is_damaged_and_not_complete(tmp_path):
    whole = write_run(tmp_path / "whole", [0.1, 0.2, 0.5], seed=1, summary={"rounds": 3})
    path = write_run(tmp_path / "cut", [0.1, 0.2, 0.3], summary={"rounds": 3})
    (path / "metrics.jsonl").write_bytes((path / "metrics.jsonl").read_bytes()[:-40])
    run = read_run(path)
    assert (run.status, run.complete, run.rounds) == ("damaged", False, 2)
    assert "metrics.jsonl: ends with round 2 of 3; the run does not count as complete" in run.problems[-1]
    assert read_run(whole).complete
    assert (
        "| fedmuon | 50.0 (1 of 2) | 50.0 (1 of 2) |" in (told := table(tmp_path))
        and "| 1 damaged, 1 finished |" in told
    )
    assert "| 20.0 | 20.0 |" in (told := table(path)) and "| 1 damaged, so far |" in told


@pytest.mark.parametrize("name", ["clients.jsonl", "clients.parquet", "partition.npz"])
def test_files_that_are_opened_for_some_figures_only_are_missed_too(tmp_path, name):
    path = write_run(tmp_path / "a", [0.1, 0.2])
    for content in (b'{"round": 1, "cli', b"PK not the rest", b'{"round": 1}\n\0\0\0\n{"round": 3}\n'):
        (path / name).write_bytes(content)
        assert read_run(path).problems == (f"{path}: {name}: is damaged",)
    (path / name).unlink()
    assert read_run(path).problems == (f"{path}: {name}: is missing",)
    assert described([tmp_path])["problems"] == [f"{path}: {name}: is missing"]


def test_nan_null_and_infinity_are_told_from_rounds_without_a_figure(tmp_path):
    path = write_run(tmp_path / "a", [0.1])
    lines = ['{"round": 1, "test/loss": NaN}', '{"round": 2}', '{"round": 3, "test/loss": null}']
    lines += ['{"round": 4, "test/loss": 1e999, "notes": ["x"], "flag": true}', '{"round": 5, "test/loss": 2}']
    (path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    run = read_run(path)
    assert np.array_equal(run.column("test/loss"), [np.inf, np.nan, np.inf, np.inf, 2], equal_nan=True)
    assert "notes" not in run.columns and run.column("flag")[3] == 1


def test_broken_lines_and_repeated_rounds(tmp_path):
    path = write_run(tmp_path / "a", [0.1])
    lines = [
        b'{"round": 2, "x": 1}',
        b"\xff\xfe",
        b"[1]",
        b'{"round": 1, "x": 2}',
        b'{"round": 2, "x": 3}',
        b'{"x": 9}',
    ]
    (path / "metrics.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    run = read_run(path)
    assert run.columns["round"].tolist() == [1, 2] and run.column("x").tolist() == [2, 3]
    assert [problem.partition(": ")[2] for problem in run.problems] == [
        "metrics.jsonl: line 2 is no JSON",
        "metrics.jsonl: line 3 is no object",
    ]


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "summary.json"])
@pytest.mark.parametrize("content", [None, "{{{", "- 1"])
def test_a_missing_or_damaged_file_is_reported(tmp_path, name, content):
    path = write_run(tmp_path / "a", [0.1, 0.2])
    (path / name).unlink()
    if content is not None:
        (path / name).write_text(content)
    (run,), problems = read_runs([tmp_path])
    assert problems == [] and len(run.problems) >= 1 and f"{path}: {name}: " in run.problems[0]


@pytest.mark.parametrize("content", ["{}", '{"status": 3}', '{"status": "finished", "rounds": "x"}'])
def test_a_summary_that_no_run_writes_is_damaged(tmp_path, content):
    path = write_run(tmp_path / "a", [0.1, 0.2])
    (path / "summary.json").write_text(content)
    run = read_run(path)
    assert run.status == "running" and run.problems == (f"{path}: summary.json: is damaged",)


def test_rounds_that_metrics_lack_are_named(tmp_path):
    path = write_run(tmp_path / "a", [0.1, 0.2, 0.3, 0.4, 0.5])
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join([*lines[:1], *lines[3:]]))
    gap = f"{path}: metrics.jsonl: lacks rounds (was a copy cut short?): 2 to 3; totals and curves leave them out"
    assert described([tmp_path])["problems"] == [gap]


def test_running_and_killed(tmp_path):
    path = write_run(tmp_path / "a", [0.1, 0.2], status="running", federation__rounds=5)
    written = (path / "metrics.jsonl").stat().st_mtime
    assert read_run(path, now=written + QUIET - 60).status == "running"
    killed = read_run(path, now=written + QUIET + 60)
    assert killed.status == "stopped" and not killed.complete


def test_runs_are_found_in_sweeps_and_once(tmp_path):
    for name in ("b", "a"):
        write_run(tmp_path / "sweep" / name, [0.1])
    inner = tmp_path / "sweep" / "a" / "wandb" / "files"
    inner.mkdir(parents=True)
    (inner / "summary.json").write_text("{}")
    (tmp_path / "sweep" / ".hydra").mkdir()
    (tmp_path / "sweep" / ".hydra" / "config.yaml").write_text("algorithm: {}\nfederation: {}")
    runs, problems = read_runs([tmp_path / "sweep", tmp_path / "sweep" / "a"])
    assert [run.path.name for run in runs] == ["a", "b"] and problems == []
    started = tmp_path / "sweep" / "c"
    started.mkdir()
    (started / "config.yaml").write_text("algorithm: {name: fedavg}\nfederation: {rounds: 3}")
    assert [path.name for path in find(tmp_path)] == ["a", "b", "c"]


def test_runs_that_are_links_are_found_too_and_once(tmp_path):
    """A folder of chosen runs; and links that lead back, which would never end."""
    run = write_run(tmp_path / "elsewhere" / "long", [0.1])
    chosen = tmp_path / "chosen"
    chosen.mkdir()
    for name, target in {"back": chosen, "better": run, "same": run, "up": tmp_path, "gone": tmp_path / "no"}.items():
        (chosen / name).symlink_to(target)
    assert [path.relative_to(chosen) for path in find(chosen)] == [Path("better")]
    runs, problems = read_runs([chosen, run])
    assert len(runs) == 1 and problems == []
    (run.parent / "latest").symlink_to(run)
    assert list(find(run.parent)) == [run], "a run has its own name beside a link to it"


def test_what_is_no_run_is_reported(tmp_path):
    write_run(tmp_path / "good", [0.1])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "summary.json").write_text(json.dumps({"total": 3}))
    (tmp_path / "empty").mkdir()
    runs, problems = read_runs([tmp_path, tmp_path / "empty"])
    assert len(runs) == 1
    assert problems == [f"{tmp_path / 'empty'}: holds no run", f"{tmp_path / 'other'}: is no run directory of fedmuon"]


def test_wrong_folders(tmp_path):
    with pytest.raises(UsageError, match="nowhere: there is no such directory"):
        read_runs([tmp_path / "nowhere"])
    with pytest.raises(UsageError, match="no run in it"):
        read_runs([tmp_path])


def test_reading_needs_no_torch():
    code = "import sys, fedmuon.report.runs, fedmuon.report.compare; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
