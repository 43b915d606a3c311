"""Catches what a task logs with `self.log`, and averages it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor
from torchmetrics import Metric


class Recorder:
    """Stands in for the `log` and `log_dict` of a task that runs inside another module.

    Numbers are averaged, weighted by batch size; a torchmetrics Metric is computed and reset when the means are read,
    as Lightning does at the end of an epoch. Nothing outlives `reset`, and nothing waits for the device before `means`.
    """

    def __init__(self, task: LightningModule) -> None:
        self._task = task
        self.reset()
        task.log = self.log  # type: ignore[method-assign]
        task.log_dict = self.log_dict  # type: ignore[method-assign, assignment]

    def reset(self, batch_size: int = 1) -> None:
        """Forget everything. `batch_size` weights what is logged without one of its own."""
        self.batch_size = batch_size
        self._sums: dict[str, Tensor] = {}
        self._weights: dict[str, int] = {}
        self._metrics: dict[str, Metric] = {}

    def log(self, name: str, value: Any, *args: Any, batch_size: int | None = None, **kwargs: Any) -> None:
        """As `LightningModule.log`; Lightning's other arguments have no meaning here and are accepted."""
        if isinstance(value, Metric):
            self._metrics[name] = value
            return
        weight = self.batch_size if batch_size is None else batch_size
        if isinstance(value, float | int):  # made on the device: nothing waits for a copy, and a graph can hold it
            device = self._task.device
            value = torch.full((), value, dtype=summing(device), device=device) * weight
        else:
            value = torch.as_tensor(value).detach()
            value = value.to(summing(value.device)) * weight
        self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._weights[name] = self._weights.get(name, 0) + weight

    def log_dict(self, dictionary: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        """As `LightningModule.log_dict`."""
        for name, value in dictionary.items():
            self.log(name, value, *args, **kwargs)

    def means(self) -> dict[str, float]:
        """Everything logged since `reset`, by name."""
        means = {name: float(total) / self._weights[name] for name, total in self._sums.items()}
        for name, metric in self._metrics.items():
            means[name] = float(metric.compute())
            metric.reset()
        return means

    def take(self) -> dict[str, Tensor]:
        """(sum, weight) of each number as a tensor [2], and forget them: what can leave a function that is vmapped."""
        pairs = {
            name: torch.stack([total, torch.full_like(total, self._weights[name])])
            for name, total in self._sums.items()
        }
        self.reset()
        return pairs


def summing(device: torch.device) -> torch.dtype:
    """The dtype of sums over many steps: in bfloat16 a count stalls at 256."""
    return torch.float32 if device.type == "mps" else torch.float64
