"""Tasks that are computed by hand, federated in a moment."""

import json
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchmetrics.classification import MulticlassAccuracy


class Quadratic(LightningModule):
    """(w - c)^2 / 2 over the batch's targets c; plain local SGD from 0 arrives at c (1 - (1 - lr)^K)."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return ((self.w - batch) ** 2).mean() / 2


class Classifier(LightningModule):
    """Any network under cross-entropy, logging the way that users do."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.seen: list[Any] = []
        self.accuracy = MulticlassAccuracy(3, average="micro")

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        logits = self.network(batch[0])
        self.seen.append(logits.dtype)
        self.log("train_batch", float(len(batch[0])), prog_bar=True, on_epoch=True, sync_dist=True)
        return {"loss": cross_entropy(logits, batch[1])}

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        logits = self.network(batch[0])
        self.accuracy(logits, batch[1])
        self.log_dict({"val_loss": cross_entropy(logits, batch[1]), "val_acc": self.accuracy}, prog_bar=True)


def normed() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))


def lines(run: Any, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.path / name).read_text().splitlines()]


def blobs(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    return torch.randn(count, 4, generator=generator) + labels[:, None], labels
