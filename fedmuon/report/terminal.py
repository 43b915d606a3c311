"""Runs side by side as a table on the terminal, from their directories."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedmuon import rundir
from fedmuon.callbacks.progress import size


def table(runs: Sequence[Path], metric: str = "accuracy") -> Table:
    """One row a run; the metric on the test set in the last round and in the one that validation chose, and which those are."""
    shown = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    left = ("run", "status")
    for column in (*left, f"test {metric}\nlast round", f"test {metric}\nbest by validation", "up", "down", "seconds"):
        shown.add_column(column, justify="left" if column in left else "right", no_wrap=column in left)
    for run in runs:
        found = rundir.summary(run)
        shown.add_row(
            found.get("name", run.name), found.get("status", "not started"), _result(found.get("last"), metric),
            _result(found.get("best"), metric), size(found.get("up_bytes", 0)), size(found.get("down_bytes", 0)),
            f"{found.get('seconds', 0):.1f}",
        )  # fmt: skip
    return shown


def show(runs: Sequence[Path], metric: str = "accuracy") -> None:
    """Print the table, the cause of what failed, and where the runs are."""
    console = Console(soft_wrap=True)
    console.print(table(runs, metric))
    for run in runs:
        if cause := rundir.summary(run).get("cause"):
            console.print(f"{run}: {cause}", style="red", highlight=False)
        else:
            console.print(f"{run}", highlight=False)


def _result(evaluation: dict[str, Any] | None, metric: str) -> str:
    if not evaluation or evaluation.get(f"test/{metric}") is None:
        return "-"
    return f"{evaluation[f'test/{metric}']:.4f} (round {evaluation['round']})"
