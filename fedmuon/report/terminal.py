"""Runs side by side as a table on the terminal, from their directories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from fedmuon import rundir
from fedmuon.console import WIDE, console, size

_SPARE = (("up", "down"), ("seconds",), ("(round)",), ("best by val.",), ("status",))  # left out first to last
_NAME, _GAP = 18, 2  # signs of a long name that stand in one line at least, and between two columns


def table(
    runs: Sequence[Path], metric: str = "accuracy", names: Mapping[Path, str] | None = None, width: int = WIDE
) -> Table:
    """One row a run: the test metric in the last round, and in the round that validation chose; bytes and seconds.

    names: what to call runs instead of the names they gave themselves
    width: of the terminal; where it is too narrow for names and all figures, some are left out, the bytes first
    """
    rows = [_row(run, metric, names or {}) for run in runs]
    titles = ("run", "status", f"test {metric}\nlast round", "best by val.", "(round)", "up", "down", "seconds")
    columns = {title: [row[i] for row in rows] for i, title in enumerate(titles)}
    for spare in _SPARE:
        name, *figures = (max(map(len, [*title.split("\n"), *cells])) + _GAP for title, cells in columns.items())
        if min(name, _NAME + _GAP) + sum(figures) > width:
            columns = {title: cells for title, cells in columns.items() if title not in spare}
    shown = Table(box=None, header_style="bold", padding=(0, _GAP, 0, 0))
    for title in columns:
        plain = title in ("run", "status")
        shown.add_column(title, overflow="fold", no_wrap=title != "run", justify="left" if plain else "right")
    for row in zip(*columns.values(), strict=True):
        shown.add_row(*row)
    return shown


def _row(run: Path, metric: str, names: Mapping[Path, str]) -> list[str]:
    found = rundir.summary(run)
    last, best = found.get("last") or {}, found.get("best") or {}
    return [
        names.get(run) or found.get("name", run.name),
        found.get("status", "not started"),
        _figure(last.get(f"test/{metric}")),
        _figure(best.get(f"test/{metric}")),
        str(best.get("round", "-")),
        _sent(found, "up_bytes"),
        _sent(found, "down_bytes"),
        f"{found.get('seconds', 0):.1f}",
    ]


def show(runs: Sequence[Path], metric: str = "accuracy", names: Mapping[Path, str] | None = None) -> None:
    """Print the table, the cause of what failed, and where the runs are."""
    screen = console()
    screen.print(table(runs, metric, names, screen.width))
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
