"""Writes a round's figures to the run directory and hands them to every logger, once, with the round as the step."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger

from fedmuon import rundir
from fedmuon.command import heed_interruption
from fedmuon.errors import UsageError
from fedmuon.federation import Federation


class Record(Callback):
    """metrics.jsonl, then clients.jsonl, before the checkpoint; on resume both are cut back to its round.

    What they lack by then is told.
    """

    def __init__(self, run: Path | None, metric: str) -> None:
        self.run, self.metric, self.round, self.seconds = run, metric, 0, 0.0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.run is not None:
            metrics, clients = self.run / "metrics.jsonl", self.run / "clients.jsonl"
            rows, of_clients = (rundir.cut_back(file, self.round) for file in (metrics, clients))
            trained = [row["round"] for row in rows if row.get("train/trained")]
            for file, wanted, found in ((metrics, range(1, self.round + 1), rows), (clients, trained, of_clients)):
                if line := rundir.lost(file, wanted, (row["round"] for row in found)):
                    print(f"fedmuon: {line}", file=sys.stderr, flush=True)
            for logger in trainer.loggers:
                if isinstance(logger, CSVLogger):  # Lightning's starts an empty file
                    for row in rows:
                        logger.log_metrics(_numbers(row), step=row["round"])

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Federation)
        logged = [key.removeprefix("val/") for key in pl_module.row if key.startswith("val/")]
        if "val" in pl_module.evaluation and self.metric not in logged:
            raise UsageError(
                f"evaluation.metric={self.metric}: is not logged by validation_step; "
                f"it logs {', '.join(logged) or 'nothing'}"
            )

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        heed_interruption()
        self._started = perf_counter()
        trainer.fit_loop.min_epochs = trainer.current_epoch + 1  # whoever asks to stop: half a round is none

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Federation)
        took = perf_counter() - self._started
        self.round, self.seconds = trainer.current_epoch + 1, self.seconds + took
        row: dict[str, Any] = {"round": self.round, **pl_module.row, "time/round": took, "time/total": self.seconds}
        pl_module.row = row
        if self.run is not None:
            rundir.append(self.run / "metrics.jsonl", [row])
            rundir.append(self.run / "clients.jsonl", pl_module.client_rows)
        for logger in trainer.loggers:
            logger.log_metrics(_numbers(row), step=self.round)

    def state_dict(self) -> dict[str, Any]:
        return {"round": self.round, "seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.round, self.seconds = state_dict["round"], state_dict["seconds"]


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    """What a logger can draw; None is how a file has a number that is not finite."""
    known = {key: math.nan if value is None else value for key, value in row.items()}
    return {key: float(value) for key, value in known.items() if isinstance(value, int | float)}
