"""A callback that measures a run: time, FLOPs and peak memory of its local steps, left in cost.json."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch.utils.flop_counter import FlopCounterMode

from fedmuon import rundir
from fedmuon.federation import Federation


class Cost(Callback):
    """Counts the first round's FLOPs, which takes its time, and clocks the others; for engine=sequential.

    flops_step      of one client's local step, as torch's counter sees matrix products, convolutions and attention:
                    an SVD, and whatever goes element by element, counts nothing
    seconds_step    of one client's local step, its share of fetching batches, rule and bookkeeping included
    seconds_server  of a round beside its clients: broadcast, averages, server optimizer
    peak_bytes      on CUDA, the most that was allocated beyond what lay there before the round; None elsewhere, where
                    a process uses its pages again and its peak says nothing
    """

    def __init__(self) -> None:
        self.flops: float | None = None
        self.rounds: list[dict[str, float]] = []
        self.peak: int | None = None

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.counter = FlopCounterMode(display=False) if self.flops is None else None
        if self.counter is not None:
            self.counter.__enter__()
        elif pl_module.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(pl_module.device)
            self.before = torch.cuda.memory_allocated(pl_module.device)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Federation)
        rows = pl_module.client_rows
        steps, seconds = sum(row["steps"] for row in rows), sum(row["seconds"] for row in rows)
        if self.counter is not None:
            self.counter.__exit__(None, None, None)
            self.flops = self.counter.get_total_flops() / max(1, steps)
            return
        server = pl_module.row["time/train"] - seconds
        self.rounds.append({"seconds_step": seconds / max(1, steps), "seconds_server": server})
        if pl_module.device.type == "cuda":
            self.peak = max(self.peak or 0, torch.cuda.max_memory_allocated(pl_module.device) - self.before)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if getattr(self, "counter", None) is not None:
            self.counter.__exit__(None, None, None)  # type: ignore[union-attr]

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        medians = {key: median(one[key] for one in self.rounds) for key in self.rounds[0]} if self.rounds else {}
        found: dict[str, Any] = {"flops_step": self.flops, **medians, "peak_bytes": self.peak}
        rundir.write_json(Path(trainer.default_root_dir) / "cost.json", found)
