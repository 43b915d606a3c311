"""Tasks of the repository's own: ordinary LightningModules, which any Trainer can fit as well."""

from __future__ import annotations

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchmetrics.classification import MulticlassAccuracy


class ImageClassification(LightningModule):
    """Cross-entropy of a network's logits; logs loss and accuracy in evaluation. A batch is (images, labels)."""

    def __init__(self, network: nn.Module, classes: int) -> None:
        super().__init__()
        self.network = network
        # unchecked, as a check waits for the device: cross_entropy refuses a label that is no class
        self.accuracy = MulticlassAccuracy(classes, average="micro", validate_args=False)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [B, classes]."""
        logits: Tensor = self.network(images)
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        return cross_entropy(self(images), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, labels = batch
        logits = self(images)
        self.accuracy.update(logits, labels)
        self.log("loss", cross_entropy(logits, labels), batch_size=len(labels))
        self.log("accuracy", self.accuracy, batch_size=len(labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """For use outside a federation, which brings its own optimization."""
        return torch.optim.AdamW(self.parameters())
