"""Every sweep and search of docs/sweeps.md, as it stands there, at a tiny size."""

import shlex
from pathlib import Path

import pytest

from fedmuon.cli import checked_jobs
from fedmuon.searching import tune
from fedmuon.tune import read
from tests.system.runs import sweep_here

PAGE = Path(__file__).parents[2] / "docs" / "sweeps.md"
COMMANDS = [
    line.split()[0:1] + shlex.split(line)[1:] for line in PAGE.read_text().splitlines() if line[:11] == "    fedmuon"
]
TINY = ["model=mlp", "model.hidden=[4]", "federation.rounds=1", "federation.clients=4", "federation.cohort=2"]
TINY += ["local.steps=1", "partition.concentration=10", "trainer.accelerator=cpu", "logger=none"]


@pytest.mark.parametrize("words", [c[1:] for c in COMMANDS if c[0] == "fedmuon"], ids=" ".join)
def test_a_documented_sweep_is_right_and_runs(words):
    assert len(checked_jobs([word for word in words if word != "-m"], multirun=True)) > 1
    if not any(word.startswith("hydra") for word in words):  # the launchers have tests of their own
        assert sweep_here(*words, *TINY) == 0
        assert len(list(Path("outputs").glob("sweep-*/*/summary.json"))) == 9


@pytest.mark.parametrize("words", [c[1:] for c in COMMANDS if c[0] == "fedmuon-tune"], ids=" ".join)
def test_a_documented_search_runs(words):
    few = [word if not word.startswith("n_trials=") else "n_trials=1" for word in words]
    tiny = [word for word in TINY if word not in few]
    assert tune(read([*few, *tiny, "tune_dir=out"])) == 0
    assert Path("out/best.yaml").exists() and Path("out/sweep.csv").exists()
