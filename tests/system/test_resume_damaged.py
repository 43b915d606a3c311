"""Going on with a run of which something is gone: it is said, and nothing else is lost."""

import json
import shutil
from pathlib import Path

import pytest

import fedmuon
from fedmuon import rundir
from fedmuon.errors import UsageError
from tests.system.runs import rows


def cut(file: Path, keep: int) -> None:
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:keep]))


def contents(run: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}


def test_rounds_that_a_copy_has_lost_are_named_and_the_run_goes_on(tiny, capsys):
    run = fedmuon.run([*tiny, "run_dir=run"]).path
    fedmuon.run([f"resume={run}", "federation.rounds=4"])
    assert "lacks" not in capsys.readouterr().err
    cut(run / "metrics.jsonl", 2)
    cut(run / "clients.jsonl", 3)
    summary, _ = fedmuon.run([f"resume={run}", "federation.rounds=5"])
    assert [line for line in capsys.readouterr().err.splitlines() if line] == [
        f"fedmuon: {run}/{name}.jsonl: lacks rounds (was a copy cut short?): {gone}; totals and curves leave them out"
        for name, gone in (("metrics", "3 to 4"), ("clients", "2"))
    ]
    assert [row["round"] for row in rows(run)] == [1, 2, 5] and summary["rounds"] == 5


def test_a_run_whose_checkpoints_were_removed_is_left_as_it_is(tiny):
    run = fedmuon.run([*tiny, "run_dir=run"]).path
    shutil.rmtree(run / "checkpoints")
    before = contents(run)
    refused = pytest.raises(UsageError, match=r"^resume=run: its checkpoints/last\.ckpt is missing, .* its 3 rounds;")
    with refused:
        fedmuon.run([f"resume={run}", "federation.rounds=5"])
    assert contents(run) == before
    assert fedmuon.run([f"resume={run}"]).summary["status"] == "finished"  # there is nothing left to do
    (run / "model.safetensors").unlink()  # as in a run that was killed
    rundir.write_json(run / "summary.json", {"status": "running"})
    before = contents(run)
    with refused:
        fedmuon.run([f"resume={run}"])
    assert contents(run) == before


def test_a_run_without_its_first_checkpoint_says_that_it_begins_again(tiny, capsys):
    run = fedmuon.run([*tiny, "checkpoint.every=3", "run_dir=run"]).path
    whole = rows(run)
    shutil.rmtree(run / "checkpoints")
    (run / "model.safetensors").unlink()
    rundir.write_json(run / "summary.json", {"status": "running"})
    cut(run / "metrics.jsonl", 2)
    capsys.readouterr()
    fedmuon.run([f"resume={run}"])
    assert "run: has no checkpoint yet, and begins again with its first round\n" in capsys.readouterr().out
    assert rows(run) == whole


def test_fewer_rounds_than_a_complete_run_has_are_told(tiny, capsys):
    run = fedmuon.run([*tiny, "run_dir=run"]).path
    before = contents(run)
    capsys.readouterr()
    assert fedmuon.run([f"resume={run}", "federation.rounds=2"]).summary["rounds"] == 3
    line = "federation.rounds=2: the run in run is complete with 3 rounds, and stays as it is\n"
    assert capsys.readouterr().out == line and contents(run) == before
    fedmuon.run([f"resume={run}", "federation.rounds=3"])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("content", ["{}", '{"status": 3}'])
def test_a_summary_that_no_run_writes(tiny, content):
    run = fedmuon.run([*tiny, "run_dir=run"]).path
    last = json.loads((run / "summary.json").read_text())["last"]
    (run / "summary.json").write_text(content)
    if content != "{}":
        with pytest.raises(UsageError, match=r"summary\.json: is damaged .* remove it and the run goes on"):
            fedmuon.run([f"resume={run}"])
        (run / "summary.json").unlink()
    summary, _ = fedmuon.run([f"resume={run}"])
    assert (summary["status"], summary["last"]) == ("finished", last)
