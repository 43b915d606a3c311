"""Jobs side by side: as in one process after the other, each its share; what fails or dies does not stop the others."""

import csv
import json
from pathlib import Path

import pytest

from tests.system.runs import assert_same_run, command, sweep_here

# An algorithm of the user's own, in the current folder, which can take its process with it.
MODULE = """
import os
from dataclasses import dataclass
from fedmuon.algorithms.sgd import SGD


@dataclass(frozen=True)
class Mine(SGD):
    fault: str = "none"

    def direction(self, g, s):
        if self.fault == "die":
            os.kill(os.getpid(), 9)
        return g
"""


@pytest.fixture
def own(tiny: list[str]) -> list[str]:
    Path("my_rule.py").write_text(MODULE)
    Path("my_conf/algorithm").mkdir(parents=True)
    text = "_target_: my_rule.Mine\nfault: none\n"
    Path("my_conf/algorithm/mine.yaml").write_text("# @package algorithm\n" + text)
    return ["--config-dir", "my_conf", "-m", "algorithm=mine", *tiny]


def table(folder: str) -> dict[str, dict[str, str]]:
    with Path(folder, "sweep.csv").open() as file:
        return {row["job"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_as_one_after_the_other(own, launcher):
    swept = [*own, "seed=0,1", "local.lr=0.1,1e30"]
    side = command(*swept, "hydra.sweep.dir=side", f"hydra/launcher={launcher}")
    assert side.returncode == 1 and "Traceback" not in side.stderr, side.stderr
    assert side.stderr.count("NaN or infinity") == 2 and side.stderr.count("the others go on") == 2
    rows = table("side")
    assert sorted(row["status"] for row in rows.values()) == ["failed", "failed", "finished", "finished"]
    assert sweep_here(*swept, "hydra.sweep.dir=one") == 1 and {*table("one")} == {*rows}
    for name, row in rows.items():
        if row["status"] == "finished":
            assert_same_run(Path("side", name), Path("one", name))
            assert json.loads(Path("side", name, "summary.json").read_text())["machine"].endswith(" 1 threads")


def test_a_job_that_is_killed_does_not_stop_the_others(own):
    done = command(*own, "algorithm.fault=die,none", "hydra.sweep.dir=out", "hydra/launcher=joblib")
    assert done.returncode == 1 and "broke off" in done.stderr and "Traceback" not in done.stderr
    rows = [(row["algorithm.fault"], row["status"], row["cause"]) for row in table("out").values()]
    assert [row[:2] for row in rows] == [("die", "failed"), ("none", "finished")] and "killed" in rows[0][2]
