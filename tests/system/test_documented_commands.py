"""Every command of docs/experiments.md, as it stands there, at a tiny size."""

import shlex
from pathlib import Path

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Image

import fedmuon

PAGE = Path(__file__).parents[2] / "docs" / "experiments.md"
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
