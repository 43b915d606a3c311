"""What a person sees while a run trains: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedmuon.console import console, size
from fedmuon.federation import Federation


class RoundProgress(Callback):
    """Round, cohort, loss, test metric, bytes up and down, time left."""

    def __init__(self, title: str, metric: str = "accuracy") -> None:
        self.title, self.metric = title, metric
        self.console = console()
        self.bar: Progress | None = None
        self.line = ""
        self.tested: float | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.rounds = trainer.max_epochs or 0
        self.started, self.first = perf_counter(), trainer.current_epoch
        if self.console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}", style="bold", markup=False),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TextColumn("{task.fields[now]}", markup=False),
                TimeRemainingColumn(compact=True),
                console=self.console,
            )
            self.task = self.bar.add_task(self.title, total=self.rounds, completed=self.first, now="")
            self.bar.start()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Federation)
        row = pl_module.row
        self.tested = row.get(f"test/{self.metric}", self.tested)
        now = "  ".join(self._figures(row))
        if self.bar is not None:
            self.bar.update(self.task, completed=row["round"], now=now)
        else:
            left = (perf_counter() - self.started) / (row["round"] - self.first) * (self.rounds - row["round"])
            self.console.print(
                f"{self.title}  round {row['round']}/{self.rounds}  {now}  {left:.0f} s left",
                highlight=False,
                soft_wrap=True,
            )
        for note in _notes(row):
            self.console.print(f"round {row['round']}: {note}", style="yellow", highlight=False, soft_wrap=True)

    def _figures(self, row: dict[str, Any]) -> list[str]:
        figures = [f"{row['train/trained']} of {row['train/cohort']} clients"]
        if "train/loss" in row:
            figures.append(f"loss {row['train/loss']:.3f}")
        if self.tested is not None:
            figures.append(f"test {self.metric} {self.tested:.4f}")
        return [*figures, f"up {size(row['comm/up_bytes'])}  down {size(row['comm/down_bytes'])}"]

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def _notes(row: dict[str, Any]) -> list[str]:
    notes = list(row.get("notes", []))
    if row.get("aggregation/skipped"):
        notes.append("no client answered with samples; the model stays as it is")
    if row.get("train/rejected"):
        notes.append(f"sent NaN or infinity: clients {', '.join(map(str, row['train/rejected']))}")
    return notes
