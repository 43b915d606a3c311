"""A workload's sizes, and the same model, data and cohorts for every contestant."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedmuon.build import image_task, load_data
from fedmuon.compose import Composer
from fedmuon.config import Config
from fedmuon.data.partition import Partition
from fedmuon.job import checked_job

DISTINCT = 5_000  # images; clients share them, so that memory is not what is measured


@dataclass(frozen=True)
class Workload:
    """`overrides` compose the run; `muon`: the plain loop takes Muon steps as published code does, else SGD.

    `embedded`: on the images of the repository, else on random ones.
    """

    overrides: tuple[str, ...]
    shape: tuple[int, int, int]
    classes: int
    clients: int
    samples: int  # a client
    cohort: int
    batch: int
    steps: int
    muon: bool
    embedded: bool = False
    device: str = "cpu"
    lr: float = 0.01

    @property
    def client_steps(self) -> int:
        """In a round."""
        return self.cohort * self.steps

    def config(self, *more: str) -> Config:
        sizes = (
            f"federation.clients={self.clients}", f"federation.cohort={self.cohort}",
            f"local.batch_size={self.batch}", f"local.steps={self.steps}", f"local.lr={self.lr}", "logger=none",
        )  # fmt: skip
        return checked_job(Composer().compose([*self.overrides, *sizes, *more])).config

    def data(self) -> tuple[Tensor, Tensor]:
        """Images [DISTINCT, ...] and labels."""
        if self.embedded:
            images, labels = load_data(self.config()).train.batch(slice(DISTINCT))
            return images, labels
        generator = torch.Generator().manual_seed(0)
        images = torch.rand(DISTINCT, *self.shape, generator=generator)
        return images, torch.randint(0, self.classes, (DISTINCT,), generator=generator)

    def partition(self) -> Partition:
        indices = np.arange(self.clients * self.samples) % DISTINCT
        return Partition(indices, np.arange(self.clients + 1) * self.samples)

    def network(self) -> nn.Module:
        return image_task(self.config(), self.shape, self.classes).network.to(self.device)

    def cohort_of(self, round: int) -> np.ndarray:
        return np.sort(np.random.default_rng([0, round]).choice(self.clients, self.cohort, replace=False))


def sized(workload: Workload, **given: Any) -> Workload:
    """The workload with what the command line gives."""
    return replace(workload, **{key: value for key, value in given.items() if value is not None})
