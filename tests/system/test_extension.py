"""A rule, a model, a data set and a partition of one's own, outside the package, by --config-dir."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import fedmuon
from fedmuon.cli import checked_jobs
from fedmuon.errors import UsageError
from fedmuon.tune import read
from tests.system.runs import command, rows, sweep_here

OWN = '''
from dataclasses import dataclass, field

from fedmuon.algorithms import Algorithm, Muon
from fedmuon.constraints import bounded, choice


@dataclass(frozen=True)
class Signed(Algorithm):
    """x <- x - eta sign(g) strength"""

    strength: float = bounded(1.0, low=0, open=True)
    kind: str = choice("sign", "sign", "square")
    names: list[str] = field(default_factory=list)

    def direction(self, g, s):
        return {name: self.strength * (one.sign() if self.kind == "sign" else one * one) for name, one in g.items()}


@dataclass(frozen=True)
class Later(Muon):
    """Muon under another name, whose fields are all inherited."""


def network(input_shape, classes, width):
    import torch

    channels, height, width_ = input_shape
    first = torch.nn.Linear(channels * height * width_, width)
    return torch.nn.Sequential(torch.nn.Flatten(), first, torch.nn.Linear(width, classes))


def data(count):
    import numpy as np
    import torch

    from fedmuon.data import DataSet, Samples

    images = torch.randn(count, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    labels = (images[:, 0, 0, 0] > 0).long()
    both = Samples((images, labels))
    return DataSet(both, both, labels.numpy(), ("no", "yes"), (1, 4, 4))
'''

CONFIG = {
    "algorithm": "# @package _global_\nalgorithm:\n  _target_: fm_own.Signed\n  strength: 2.0\nlocal:\n  lr: 0.01\n",
    "model": "_target_: fm_own.network\nwidth: 5\n",
    "data": "_target_: fm_own.data\ncount: 60\nvalidation: 0.2\n",
}
MINE = [
    "algorithm=mine",
    "model=mine",
    "data=mine",
    "partition=iid",
    "federation.clients=4",
    "federation.cohort=2",
    "federation.rounds=2",
    "logger=none",
]


@pytest.fixture
def own(tmp_path) -> tuple[Path, Path]:
    """The folder of the package and the --config-dir."""
    package, conf = tmp_path / "package", tmp_path / "conf"
    package.mkdir()
    (package / "fm_own.py").write_text(OWN)
    for group, text in CONFIG.items():
        (conf / group).mkdir(parents=True)
        (conf / group / "mine.yaml").write_text(text)
    return package, conf


@pytest.fixture
def importable(own, monkeypatch) -> str:
    monkeypatch.syspath_prepend(str(own[0]))
    return str(own[1])


def test_all_of_ones_own_by_the_command(own):
    package, conf = own
    done = command("--config-dir", str(conf), *MINE, "trainer.accelerator=cpu", "run_dir=run", PYTHONPATH=str(package))
    assert done.returncode == 0, done.stderr
    assert [row["round"] for row in rows(Path("run"))] == [1, 2] and "test/accuracy" in rows(Path("run"))[-1]
    listed = command("--config-dir", str(conf), "--help").stdout
    assert "mine" in next(line for line in listed.splitlines() if line.startswith("algorithm: "))


def test_ones_own_in_the_current_folder(own):
    shutil.copy(own[0] / "fm_own.py", "fm_own.py")
    done = command("--config-dir", str(own[1]), *MINE, "trainer.accelerator=cpu", "run_dir=run")
    assert done.returncode == 0, done.stderr
    code = (
        "from fedmuon.evaluate import main; import sys; sys.path.remove(''); main()"  # as the script that is installed
    )
    done = subprocess.run([sys.executable, "-c", code, "run"], capture_output=True, text=True)
    assert done.returncode == 0 and "test: " in done.stdout, done.stderr


def test_the_rule_does_what_it_says(importable):
    overrides = [
        "local.steps=1",
        "local.lr=0.5",
        "algorithm.strength=0.1",
        "federation.rounds=1",
        "trainer.accelerator=cpu",
    ]
    runs = [
        fedmuon.run([*MINE, *overrides, f"server.lr={lr}", f"run_dir=run{lr}"], config_dir=importable).path
        for lr in ("1.0", "1e-30")
    ]
    moved, still = (fedmuon.saved.load_file(run / "model.safetensors") for run in runs)
    steps = (moved["1.weight"] - still["1.weight"]).abs()
    assert steps.max().item() == pytest.approx(0.05, rel=1e-4)  # both clients' signs agree somewhere


def test_a_run_of_ones_own_is_loaded_and_resumed(importable):
    overrides = [*MINE, "trainer.accelerator=cpu"]
    whole = fedmuon.run([*overrides, "run_dir=whole"], config_dir=importable).path
    run = fedmuon.run([*overrides, "federation.rounds=1", "run_dir=run"], config_dir=importable).path
    fedmuon.run([f"resume={run}", "federation.rounds=2"], config_dir=importable)
    assert rows(run) == rows(whole)
    assert fedmuon.load(run).classes == ("no", "yes")


def test_a_run_of_ones_own_resumed_without_its_folder_is_told_so(importable):
    overrides = [*MINE, "trainer.accelerator=cpu", "federation.rounds=1", "run_dir=run"]
    fedmuon.run(overrides, config_dir=importable)
    Path("empty").mkdir()
    for given, group in (
        ("algorithm.strength=2.0", "algorithm"),
        ("~algorithm.strength", "algorithm"),
        ("model.width=5", "model"),
        ("model=mine", "model"),
    ):
        for folder, where in ((None, "fedmuon"), ("empty", "--config-dir empty")):
            with pytest.raises(UsageError) as caught:
                fedmuon.run(["resume=run", given], config_dir=folder)
            assert str(caught.value) == (
                f"{given}: the run in resume=run has an option of one's own, {group}=mine, and {where} has no "
                f"{group}/mine.yaml; give the --config-dir that the run was started with"
            )
    assert fedmuon.run(["resume=run", "federation.rounds=2"]).summary["rounds"] == 2  # of keys that are everybody's
    assert fedmuon.run(["resume=run", "model.width=5"], config_dir=importable).summary["rounds"] == 2
    with pytest.raises(UsageError, match=r"^model=lenet5: the run in resume=run belongs to another configuration"):
        fedmuon.run(["resume=run", "model=lenet5"])


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("algorithm.strength=strong", "a number"),
        ("algorithm.strength=-1", "above 0"),
        ("+algorithm.kind=cube", "sign, square"),
        ("+algorithm.names=3", "list"),
        ("+algorithm.lenght=1", "no such key"),
        ("+algorithm.alpha=3", "at most 1"),
        ("algorithm.strenght=1", "strength"),
        ("algorithm.alhpa=1", "did you mean 'algorithm.alpha'"),
        ("algorithm.alpha=3", "at most 1"),
        ("algorithm.alpha=0.1,0.2", "-m"),
    ],
)
def test_wrong_values_of_ones_own_rule(importable, override, says):
    with pytest.raises(UsageError) as caught:
        fedmuon.run([*MINE, override], config_dir=importable)
    line = str(caught.value)
    assert line.startswith(override.split("=")[0].lstrip("+"))
    assert says in line and "\n" not in line and not Path("outputs").exists()


def test_fields_that_no_yaml_lists_are_keys_as_any_other(importable):
    """A rule's inherited ones, those of a dataclass inside it, and of a folder's own option of `local`."""
    Path(importable, "local").mkdir()
    Path(importable, "local", "mine.yaml").write_text("steps: 3\n")
    deep = ["algorithm=mine", "algorithm._target_=fm_own.Later", "~algorithm.strength", "algorithm.polar.steps=3"]
    (job,) = checked_jobs([*MINE, "algorithm.alpha=0.1", "local=mine", "local.clip=2"], config_dir=importable)
    assert job.config.algorithm.alpha == job.saved.algorithm.alpha == 0.1 and job.config.local.clip == 2
    (job,) = checked_jobs([*deep, "algorithm.adamw={lr: 0.5}"], config_dir=importable)
    assert (job.config.algorithm.polar.steps, job.config.algorithm.adamw.lr) == (3, 0.5)
    jobs = checked_jobs([*MINE, "algorithm.alpha=0.1,0.2", "seed=0,1"], multirun=True, config_dir=importable)
    assert [job.config.algorithm.alpha for job in jobs] == [0.1, 0.1, 0.2, 0.2] and jobs[0].name == (
        "algorithm.alpha=0.1,seed=0"
    )


def test_inherited_fields_by_the_command_in_a_sweep_and_in_a_search(importable):
    keys = ["--config-dir", importable, *MINE, "trainer.accelerator=cpu"]
    assert sweep_here(*keys, "algorithm.alpha=0.5", "run_dir=run", "federation.rounds=1") == 0
    assert OmegaConf.load("run/config.yaml").algorithm.alpha == 0.5
    assert sweep_here("-m", *keys, "algorithm.alpha=0.5,0.25", "hydra.sweep.dir=sweep") == 0
    found = [OmegaConf.load(file).algorithm.alpha for file in Path("sweep").glob("*/config.yaml")]
    assert sorted(found) == [0.25, 0.5]
    shutil.copy(Path(importable).parent / "package" / "fm_own.py", "fm_own.py")
    shown = command(*keys, "--cfg", "job", "algorithm.alpha=0.125")
    assert shown.returncode == 0 and "alpha: 0.125" in shown.stdout
    Path("space.yaml").write_text("algorithm.alpha: {low: 0, high: 0.9}\n")
    (search,) = read(["algorithm=mine", "space=space.yaml", *MINE[1:]], importable).searches
    assert search.start == {"algorithm.alpha": 0.0}


@pytest.mark.parametrize(
    ("group", "target", "says"),
    [
        ("algorithm", "no_such_package.Rule", "cannot be imported"),
        ("algorithm", "fm_own.Sined", "cannot be imported"),
        ("algorithm", "fm_own.network", "frozen dataclass"),
        ("model", "no_such_package.Net", "cannot be imported"),
        ("model", "fm_own.nothing", "cannot be imported"),
        ("data", "fm_own.network", "data"),
        ("model", "fm_own", "model"),
    ],
)
def test_targets_that_are_none(importable, group, target, says):
    with pytest.raises(UsageError) as caught:
        fedmuon.run([*MINE, f"{group}._target_={target}"], config_dir=importable)
    assert says in str(caught.value) and "\n" not in str(caught.value) and not Path("outputs").exists()


def test_a_parameter_that_ones_own_model_does_not_take(importable):
    with pytest.raises(UsageError, match=r"^model"):
        fedmuon.run([*MINE, "+model.depth=3"], config_dir=importable)
    assert not Path("outputs").exists()
