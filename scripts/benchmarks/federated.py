"""A federation as a contestant: whole rounds through Lightning, from drawing the cohort to the new global model."""

from __future__ import annotations

import logging
import warnings
from functools import partial
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback

from benchmarks.turns import Turn
from benchmarks.workload import Workload
from fedmuon.build import image_task
from fedmuon.data.samples import Samples
from fedmuon.federation import Federation


class _TakeTurns(Callback):
    def __init__(self, turn: Turn, rounds: int) -> None:
        self.turn, self.rounds = turn, rounds
        self.notes: list[str] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._begin(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.notes += pl_module.row.get("notes", [])
        if (trainer.current_epoch + 1) % self.rounds == 0:
            self.turn.end("; ".join(self.notes))
            self._begin(trainer)

    def _begin(self, trainer: Any) -> None:
        if not self.turn.begin():
            trainer.should_stop = True


def federated(workload: Workload, rounds: int, overrides: tuple[str, ...], turn: Turn) -> None:
    """Rounds until no turn comes, without evaluation, loggers and checkpoints, which the plain loop has not either."""
    config = workload.config(*overrides)
    images, labels = workload.data()
    federation = Federation(
        image_task(config, workload.shape, workload.classes), config.algorithm,
        server=partial(torch.optim.SGD, lr=1.0), train=Samples((images, labels)), partition=workload.partition(),
        cohort=workload.cohort_of, local=config.local, engine=config.engine,
    )  # fmt: skip
    fit(federation, config.trainer.precision, workload.device, [_TakeTurns(turn, rounds)], 10**6)


def fit(federation: Federation, precision: Any, device: str, callbacks: list[Callback], rounds: int) -> None:
    """Lightning's fit with nothing but rounds."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    lightning.Trainer(
        accelerator=device, devices=1, precision=precision, max_epochs=rounds, callbacks=callbacks, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
    ).fit(federation)  # fmt: skip
