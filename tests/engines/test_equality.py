"""Every engine gives the sequential engine's answer: algorithms, models, ragged clients, chunks."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout

import fedmuon
from fedmuon import rundir
from fedmuon.data import Partition
from fedmuon.data.augment import Augmentation, Normalize
from fedmuon.data.samples import Samples

MODELS = {
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 3)),
    "conv_groupnorm": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(144, 3)
    ),
    "conv_batchnorm": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(144, 3)
    ),
    "dropout": lambda: nn.Sequential(
        nn.Flatten(), nn.Dropout(0.3), nn.Linear(36, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3)
    ),
}
SIZES = (9, 4, 13, 1, 6)
PLAIN = Normalize((0.5,), (0.3,))


class Task(LightningModule):
    def __init__(self, model: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = MODELS[model]()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        logits = self.network(batch[0])
        self.log("correct", (logits.argmax(1) == batch[1]).float().mean())
        return cross_entropy(logits, batch[1])


def run(
    path: Any, model: str, engine: str, algorithm: str, task: Any = Task,
    samples: Any = None, partition: Any = None, **overrides: Any,
) -> Any:  # fmt: skip
    """The trained task and the rows of metrics.jsonl, without times."""
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.standard_normal((sum(SIZES), 1, 6, 6)))
    if "64" not in overrides.get("trainer.precision", "64"):
        images = images.float()
    labels = torch.from_numpy(rng.integers(0, 3, sum(SIZES)))
    bounds = [0, *np.cumsum(SIZES)]
    module = task(model)
    keys = {
        "engine": engine, "logger": "none", "run_dir": str(path), "trainer.precision": "64-true",
        "trainer.accelerator": "cpu", "local.epochs": 1.5, "local.batch_size": 4, "local.lr": 0.05,
        "checkpoint.every": 9,
    }  # fmt: skip
    if "muon" in algorithm:
        keys["algorithm.polar.method"] = "svd"
    lists = [list(range(a, b)) for a, b in pairwise(bounds)]
    result = fedmuon.federate(
        module, samples or (images, labels), partition=partition or lists, algorithm=algorithm, rounds=3,
        **(keys | overrides),
    )  # fmt: skip
    rows = rundir.read(result.path / "metrics.jsonl")
    return module, [{key: value for key, value in row.items() if not key.startswith("time/")} for row in rows]


def same(a: LightningModule, b: LightningModule, tolerance: float) -> None:
    for name, value in a.state_dict().items():
        np.testing.assert_allclose(b.state_dict()[name], value, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("model,algorithm", [("dropout", "fedavg"), ("conv_batchnorm", "fedmuon_published")])
def test_whole_runs_agree_in_float64_and_log_the_same(model: str, algorithm: str, tmp_path: Any) -> None:
    clip = {"local.clip": 0.5} if algorithm == "fedavg" else {}
    expected, rows = run(tmp_path / "a", model, "sequential", algorithm, **clip)
    for chunk in (None, 2):
        found, other = run(tmp_path / f"b{chunk}", model, "stacked", algorithm, **{"engine.chunk": chunk}, **clip)
        same(expected, found, 1e-10)
        for one, two in zip(rows, other, strict=True):
            assert "notes" not in two
            assert one["train/loss"] == pytest.approx(two["train/loss"], abs=1e-10)
            assert one["train/correct"] == pytest.approx(two["train/correct"], abs=1e-6)


class Itemizing(Task):
    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * 2 if loss.item() > 0 else loss


class Recurrent(Task):
    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.network = nn.Sequential(nn.Flatten(2), nn.LSTM(36, 8, batch_first=True))
        self.head = nn.Linear(8, 3)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        hidden, _ = self.network(batch[0])
        return cross_entropy(self.head(hidden[:, -1]), batch[1])


class Noisy(Task):
    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return cross_entropy(dropout(self.network(batch[0]), 0.2), batch[1])


def test_a_recurrent_task_gives_the_same_answer_on_both_engines(tmp_path: Any) -> None:
    expected, _ = run(tmp_path / "a", "mlp", "sequential", "fedavg", Recurrent)
    found, _ = run(tmp_path / "b", "mlp", "stacked", "fedavg", Recurrent)
    same(expected, found, 1e-10)


@pytest.mark.parametrize("task", [Itemizing, Noisy])
def test_a_task_that_cannot_be_stacked_falls_back_and_says_where(task: Any, tmp_path: Any) -> None:
    expected, _ = run(tmp_path / "a", "mlp", "sequential", "fedavg", task)
    found, rows = run(tmp_path / "b", "mlp", "stacked", "fedavg", task)
    same(expected, found, 0.0)
    assert "test_equality.py:" in rows[0]["notes"][0]


def test_out_of_memory_halves_the_stack_and_gives_the_same_answer(tmp_path: Any, monkeypatch: Any) -> None:
    from fedmuon.engines.stacked import Stacked

    expected, _ = run(tmp_path / "a", "mlp", "stacked", "fedmuon")
    real = Stacked.train

    def small(self: Any, work: Any, broadcast: Any) -> Any:
        if len(work) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, work, broadcast)

    monkeypatch.setattr(Stacked, "train", small)
    found, rows = run(tmp_path / "b", "mlp", "stacked", "fedmuon")
    same(expected, found, 1e-12)
    assert "out of memory with 3 clients at once: 1" in rows[0]["notes"][0]


@pytest.mark.parametrize("algorithm", ["fedavg", "mimelite"])
def test_everything_random_is_each_client_s_own_on_every_engine(algorithm: str, tmp_path: Any) -> None:
    """Augmentation, feature shift and dropout, ragged clients, any chunk."""
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 256, (sum(SIZES), 1, 6, 6), dtype=np.uint8))
    labels = torch.from_numpy(rng.integers(0, 3, sum(SIZES)))
    augment = Augmentation(PLAIN, crop=1, flip=True, cutout=2)
    features = np.array([[0.1, 0], [0.0, 20], [0.2, 90], [0.1, -30], [0, 0]], np.float32)
    lists = [list(range(a, b)) for a, b in pairwise([0, *np.cumsum(SIZES)])]
    ways = [("sequential", None), ("sequential", 1), ("stacked", None), ("stacked", 2)]
    found = [
        run(
            tmp_path / f"{number}", "dropout", engine, algorithm,
            samples=Samples((pixels, labels), PLAIN, augment),
            partition=replace(Partition.from_lists(lists), features=features), **{"engine.chunk": chunk},
        )[0]
        for number, (engine, chunk) in enumerate(ways)
    ]  # fmt: skip
    plain, _ = run(tmp_path / "plain", "dropout", "sequential", algorithm, samples=Samples((pixels, labels), PLAIN))
    same(found[0], found[1], 0.0)
    for other in found[2:]:
        same(found[0], other, 1e-10)
    weight = "network.2.weight"
    assert (plain.state_dict()[weight] - found[0].state_dict()[weight]).abs().max() > 1e-3
