"""Runs side by side as a table on the terminal, from their directories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from fedmuon import rundir
from fedmuon.callbacks.progress import size
from fedmuon.console import console


def table(runs: Sequence[Path], metric: str = "accuracy", names: Mapping[Path, str] | None = None) -> Table:
    """One row a run: the test metric in the last round, and in the round that validation chose; bytes and seconds.

    names: what to call runs instead of the names they gave themselves.
    """
    shown = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    shown.add_column("run", overflow="fold")
    shown.add_column("status", no_wrap=True)
    for column in (f"test {metric}\nlast round", "\nbest by val.", "\n(round)", "\nup", "\ndown", "\nseconds"):
        shown.add_column(column, justify="right", no_wrap=True)
    for run in runs:
        found = rundir.summary(run)
        last, best = found.get("last") or {}, found.get("best") or {}
        shown.add_row(
            (names or {}).get(run) or found.get("name", run.name),
            found.get("status", "not started"),
            _figure(last.get(f"test/{metric}")),
            _figure(best.get(f"test/{metric}")),
            str(best.get("round", "-")),
            _sent(found, "up_bytes"),
            _sent(found, "down_bytes"),
            f"{found.get('seconds', 0):.1f}",
        )
    return shown


def show(runs: Sequence[Path], metric: str = "accuracy", names: Mapping[Path, str] | None = None) -> None:
    """Print the table, the cause of what failed, and where the runs are."""
    screen = console()
    screen.print(table(runs, metric, names))
    for run in runs:
        if cause := rundir.summary(run).get("cause"):
            screen.print(f"{run}: {cause}", style="red", highlight=False, soft_wrap=True)
        else:
            screen.print(f"{run}", highlight=False, soft_wrap=True)


def _sent(found: Mapping[str, Any], key: str) -> str:
    """Bytes sent; with compression also what they were before."""
    sent, before = found.get(key, 0), found.get(f"{key}_before", 0)
    return f"{size(sent)} of {size(before)}" if before else size(sent)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
