"""Checkpoints: Lightning's own, written so that a kill never leaves half of one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from fedmuon import rundir
from fedmuon.federation import Federation


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target and renames: the file of a name is always a whole one, and /tmp needs no room for it."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        if storage_options is not None:
            raise TypeError(f"storage_options={storage_options}: checkpoints are files here; leave it away")
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with rundir.replacing(Path(path)) as beside, beside.open("wb") as file:
            try:
                torch.save(checkpoint, file)
            except RuntimeError as error:  # in which torch wraps what the file said, such as a full disk
                raise error.__context__ if isinstance(error.__context__, OSError) else error from None


class _Kept(ModelCheckpoint):
    """Knows its files again where the run directory has moved: Lightning would forget the score to beat."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        def here(path: str) -> str:
            return os.path.join(str(self.dirpath), os.path.basename(path)) if path else path

        paths = ("best_model_path", "kth_best_model_path", "last_model_path")
        moved = {name: here(state_dict[name]) for name in paths}
        scores = {here(path): score for path, score in state_dict["best_k_models"].items()}
        super().load_state_dict({**state_dict, **moved, "best_k_models": scores, "dirpath": self.dirpath})


class BestCheckpoint(_Kept):
    """The best by a validation metric; its own class, beside any ModelCheckpoint of the user's."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.monitor in trainer.callback_metrics:  # a round without evaluation has nothing to compare
            super().on_train_epoch_end(trainer, pl_module)


class LastCheckpoint(_Kept):
    """Every so many rounds, and always in the last one."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.should_stop or trainer.current_epoch + 1 == trainer.max_epochs:
            self._every_n_epochs = 1
        super().on_train_epoch_end(trainer, pl_module)
        if self._last_global_step_saved == trainer.global_step:
            assert isinstance(pl_module, Federation)
            pl_module.store.passed(trainer.current_epoch + 1)


def checkpoints(folder: Path, every: int, monitor: str | None, mode: str) -> list[Callback]:
    """last.ckpt every so many rounds, and best.ckpt by a validation metric where there is one."""
    common: dict[str, Any] = {
        "dirpath": folder,
        "auto_insert_metric_name": False,
        "enable_version_counter": False,
        "save_on_train_epoch_end": True,
    }
    last = LastCheckpoint(filename="last", every_n_epochs=every, save_top_k=1, **common)
    if monitor is None:
        return [last]
    return [BestCheckpoint(filename="best", monitor=monitor, mode=mode, save_top_k=1, **common), last]
