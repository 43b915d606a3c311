"""Curves of a group over rounds, megabytes and seconds: mean and deviation over its seeds, thin enough for a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmuon.report.compare import Group
from fedmuon.report.results import Metric, megabytes, seconds
from fedmuon.report.runs import RunData


def series(metric: Metric) -> list[tuple[str, str]]:
    """(key of metrics.jsonl, title) of the curves that a report shows."""
    loss = Metric("loss", False, metric.split)
    found = [(metric.key, metric.title), (loss.key, loss.title), ("train/loss", "training loss")]
    return list(dict(found).items())


def curves(group: Group, metric: Metric, points: int, each_run: bool = True) -> dict[str, Any]:
    """{"round", "mb", "s": x axes, "series": {key: {"mean", "dev", "runs"}}}, None where a round has no figure.

    Means run over the rounds that every counted run has; of a group that only has failed runs, these are shown.
    points: about so many rounds are kept of a longer run, evaluated ones first;  each_run: the seeds' own curves too
    """
    runs = [run for run in group.counted or group.runs if len(run.columns["round"])]
    if not runs:
        return {"round": [], "mb": [], "s": [], "series": {}}
    rounds = _common([run.columns["round"] for run in runs])
    rows = [np.flatnonzero(np.isin(run.columns["round"], rounds)) for run in runs]
    keys = [key for key, _ in series(metric)]
    tables = {key: _table(runs, rows, key) for key in keys}
    kept = _kept(np.isfinite(tables[keys[0]]).all(0), points)
    axes = [
        np.mean([of(run)[row] for run, row in zip(runs, rows, strict=True)], 0)[kept] for of in (megabytes, seconds)
    ]
    return {
        "round": rounded(rounds[kept], 9),
        "mb": rounded(axes[0]),
        "s": rounded(axes[1]),
        "series": {key: _series(table[:, kept], each_run) for key, table in tables.items() if np.isfinite(table).any()},
    }


def _series(table: np.ndarray, each_run: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"mean": rounded(table.mean(0))}
    if len(table) > 1:
        found["dev"] = rounded(table.std(0, ddof=1))
        if each_run:
            found["runs"] = [rounded(row) for row in table]
    return found


def _common(rounds: Sequence[np.ndarray]) -> np.ndarray:
    common = rounds[0]
    for more in rounds[1:]:
        common = np.intersect1d(common, more, assume_unique=True)
    return common


def _table(runs: Sequence[RunData], rows: Sequence[np.ndarray], key: str) -> np.ndarray:
    """[runs, rounds], NaN for what is absent or not finite."""
    table = np.stack([run.column(key)[row] for run, row in zip(runs, rows, strict=True)])
    return np.where(np.isfinite(table), table, math.nan)


def _kept(evaluated: np.ndarray, points: int) -> np.ndarray:
    """Indices of the rounds to keep, the first and the last among them."""
    every = np.arange(len(evaluated))
    if len(every) <= points:
        return every
    return np.union1d(_spaced(np.flatnonzero(evaluated), points), _spaced(every, points // 2))


def _spaced(indices: np.ndarray, points: int) -> np.ndarray:
    if len(indices) <= points:
        return indices
    return indices[np.unique(np.linspace(0, len(indices) - 1, points).round().astype(int))]


def rounded(values: np.ndarray, digits: int = 5) -> list[float | None]:
    """Numbers for JSON with so many significant digits; None for what is not finite."""
    return [_short(value, digits) for value in np.asarray(values, float).tolist()]


def _short(value: float, digits: int) -> float | int | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() else short
