"""One command for every method: `fedmuon -m algorithm=<all>` on the embedded images."""

import shlex
from pathlib import Path

import pytest

import fedmuon
from fedmuon import rundir
from fedmuon.cli import checked_jobs
from fedmuon.compose import CONF
from tests.system.runs import command

ALGORITHMS = sorted(file.stem for file in (CONF / "algorithm").glob("*.yaml"))
PAGE = Path(__file__).parents[2] / "docs" / "compression.md"
COMMANDS = [line.strip() for line in PAGE.read_text().splitlines() if line.startswith("    fedmuon algorithm=")]


def test_three_rounds_of_every_algorithm_on_the_embedded_data() -> None:
    tiny = ["model=mlp", "model.hidden=[4]", "federation.cohort=3", "federation.rounds=3", "local.steps=2"]
    watched = ["logger=none", "trainer.accelerator=cpu", "trainer.limit_val_batches=1", "engine=stacked"]
    done = command("-m", f"algorithm={','.join(ALGORITHMS)}", *tiny, *watched, "hydra.sweep.dir=all")
    assert done.returncode == 0, done.stderr
    summaries = [rundir.summary(path.parent) for path in Path("all").glob("*/summary.json")]
    assert len(summaries) == len(ALGORITHMS) > 20
    assert all(found["status"] == "finished" and found["rounds"] == 3 for found in summaries)
    moved = {found["last"]["test/loss"] for found in summaries}
    assert len(moved) > len(ALGORITHMS) - 3, "methods that are one and the same"  # fedpac_muon is fedmuon


@pytest.mark.parametrize("algorithm", ["scaffold", "mimelite"])
def test_the_default_job_learns_by_the_files_own_constants(algorithm: str) -> None:
    """With FedAvg's rate alone the one diverged in round 16, the other stayed near chance."""
    watched = ["logger=none", "trainer.accelerator=cpu", "trainer.check_val_every_n_epoch=20"]
    summary = fedmuon.run([f"algorithm={algorithm}", "federation.rounds=20", *watched]).summary
    assert summary["status"] == "finished" and summary["last"]["test/accuracy"] > 0.4


@pytest.mark.parametrize("line", COMMANDS)
def test_a_documented_compression_composes(line: str) -> None:
    (job,) = checked_jobs(shlex.split(line, comments=True)[1:])
    compressed = {job.config.compression.up.method, job.config.compression.down.method} != {"none"}
    assert compressed or job.config.federation.store == "disk"
