"""A data set so small that a whole run takes a moment, and environments without accounts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning import LightningModule

import fedmuon
from tests.system.runs import write_images


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.parquet and test.parquet: 240 and 60 grey images of 8 x 8 pixels in four classes."""
    folder = tmp_path_factory.mktemp("images")
    write_images(folder / "train.parquet", 240, seed=0)
    write_images(folder / "test.parquet", 60, seed=1)
    return folder


@pytest.fixture
def tiny(images: Path) -> list[str]:
    """Overrides of a run on these images that takes a few milliseconds a round."""
    return [
        f"data.root={images}",
        "model=mlp",
        "model.hidden=[8]",
        "federation.clients=6",
        "federation.cohort=3",
        "federation.rounds=3",
        "local.steps=2",
        "local.batch_size=8",
        "partition.concentration=1",
        "trainer.accelerator=cpu",
        "logger=none",
    ]


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No account of whoever runs the tests is used, and what a run leaves by mistake lands in the test's own folder."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)


@pytest.fixture
def federate(tmp_path: Path) -> Callable[..., Any]:
    """`fedmuon.federate` with FedAvg on the CPU, every run in a directory of its own."""
    count = iter(range(1000))

    def run(module: LightningModule, train: Any, lists: Any, **overrides: Any) -> Any:
        keys: dict[str, Any] = {
            "algorithm": "fedavg",
            "rounds": 1,
            "logger": "none",
            "trainer.accelerator": "cpu",
            "local.steps": 2,
            "local.batch_size": 4,
            "run_dir": str(tmp_path / f"run{next(count)}"),
            **overrides,
        }
        if "local.epochs" in overrides:
            del keys["local.steps"]  # both at once are refused
        return fedmuon.federate(module, train, partition=lists, **keys)

    return run
