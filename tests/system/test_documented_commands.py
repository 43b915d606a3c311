"""Documented commands: those of docs/experiments.md run as they stand there, at a tiny size; the others are right."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Image

import fedmuon
from fedmuon import evaluate, tune
from fedmuon.cli import checked_jobs
from fedmuon.report import main as report
from fedmuon.report import partition

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "experiments.md"
OTHERS = [
    line.strip().partition("  #")[0].rstrip()
    for page in ("README.md", "docs/report.md", "docs/graph.md", "docs/reproduction.md")
    for line in (ROOT / page).read_text().splitlines()
    if line.startswith(("    fedmuon ", "    fedmuon-"))
]
COMMANDS = [line.strip() for line in PAGE.read_text().splitlines() if line.startswith("    fedmuon data=")]
TINY = ["federation.rounds=1", "local.steps=1", "local.batch_size=4", "logger=none", "trainer.accelerator=cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images with CIFAR-100's columns, 400 and 40 of them in 20 of its classes."""
    path = tmp_path_factory.mktemp("cifar")
    rng = np.random.default_rng(0)
    fine, coarse = ClassLabel(num_classes=100), ClassLabel(num_classes=20)
    columns = Features({"img": Image(), "fine_label": fine, "coarse_label": coarse})
    for split, count in (("train", 400), ("test", 40)):
        pixels = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        labels = np.arange(count) % 20
        rows = {"img": list(pixels), "fine_label": labels.tolist(), "coarse_label": labels.tolist()}
        Dataset.from_dict(rows, features=columns).to_parquet(path / f"{split}.parquet")
    np.savez(path / "LISTS.npz", indices=rng.permutation(400).reshape(100, 4).astype(np.int32))
    return path


def test_there_are_the_command_and_more_than_ten_variations() -> None:
    assert len(COMMANDS) > 10


@pytest.mark.parametrize("command", COMMANDS)
def test_a_documented_command_runs(command: str, folder: Path, tmp_path: Path) -> None:
    overrides = shlex.split(command.replace("FOLDER", str(folder)).replace("LISTS", str(folder / "LISTS")))[1:]
    if "vit_tiny" in command:
        overrides.append("model.depth=1")
    cohort = [] if "federation.cohort" in command else ["federation.cohort=2"]
    clients = [] if "federation.clients" in command else ["federation.clients=4"]
    result = fedmuon.run([*overrides, *TINY, *cohort, *clients, f"run_dir={tmp_path / 'run'}"])
    assert result.summary["status"] == "finished"
    assert 0 <= result.summary["last"]["test/accuracy"] <= 1


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """outputs/RUN and outputs/SWEEP of the pages, and RUN and SWEEP beside them."""
    outputs = tmp_path_factory.mktemp("made") / "outputs"
    overrides = ["model=mlp", "model.hidden=[4]", "federation.clients=4", "federation.cohort=2", "algorithm=fedavgm"]
    fedmuon.run([*overrides, *TINY, f"run_dir={outputs / 'RUN'}"])
    for name in ("SWEEP", "sweep-3f2a91"):
        shutil.copytree(outputs / "RUN", outputs / name / "run")
    return outputs


@pytest.mark.parametrize("command", OTHERS)
def test_another_documented_command_is_right(command, made, folder, monkeypatch, capsys) -> None:
    lists = shutil.copytree(folder, Path("lists"))
    shutil.copy(lists / "LISTS.npz", lists / "cifar100-dirichlet0.1-100x500.npz")
    shutil.copytree(made, "outputs")
    for name in ("RUN", "SWEEP"):
        Path(name).symlink_to(Path("outputs") / name)
    for word in ("FOLDER", "CIFAR100", "LISTS"):
        command = command.replace(f"={word}", f"={lists}")
    program, *words = shlex.split(command)
    monkeypatch.setattr("webbrowser.open", lambda address: True)
    if words[0] in ("--help", "--cfg"):
        done = subprocess.run([sys.executable, "-m", "fedmuon", *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and "algorithm" in done.stdout
    elif program == "fedmuon":
        jobs = checked_jobs([word for word in words if word != "-m"], multirun="-m" in words)
        assert len(jobs) == (9 if "-m" in words else 1)
    elif program == "fedmuon-tune":
        assert len(tune.read(words).searches) == 2
    elif program == "fedmuon-evaluate":
        assert evaluate.evaluate(Path(*words))["test"]["accuracy"] >= 0
    elif program == "fedmuon-partition":
        partition.write(words, Path("partition.html"))
    elif "--watch" in words:
        report._check_together(report._parser().parse_intermixed_args(words))
    else:
        report.main(words)
        assert capsys.readouterr().out
