"""The figures of one run that a comparison shows, from its rounds: what "last", "best" and "to a target" mean.

last   the test metric in the last round that was evaluated; for a complete run, that is its result
best   the test metric in the first round whose validation metric is the best: the test set selects nothing
Both are infinite where the round has the metric but it is not finite (the run diverged), NaN where there is none.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedmuon.errors import UsageError, nearest
from fedmuon.report.runs import RunData
from fedmuon.selection import at_target, bare, way


class Metric(NamedTuple):
    """What is compared: `name`, whether more of it is better, and on which data; validation where runs have no test."""

    name: str
    higher: bool
    split: str = "test"

    @property
    def key(self) -> str:
        """The key of metrics.jsonl."""
        return f"{self.split}/{self.name}"

    @property
    def title(self) -> str:
        """ "test accuracy" or "validation accuracy"."""
        return f"{'validation' if self.split == 'val' else self.split} {self.name}"


class Reached(NamedTuple):
    """What it took to reach a target: NaN where it was not reached."""

    round: float
    megabytes: float
    seconds: float


def metric_of(runs: Sequence[RunData], name: str | None = None) -> Metric:
    """The metric that most runs select by, or the one named. Raises UsageError for one that no run has logged."""
    logged = _names(runs)
    name = bare(name) if name and name not in logged else name
    if name is not None and logged and name not in logged:
        raise UsageError(f"--metric {name}: no run has it{nearest(name, logged)}; allowed: {', '.join(logged)}")
    chosen = [(run.config.get("evaluation.metric"), run.config.get("evaluation.mode")) for run in runs]
    counted = Counter(pair for pair in chosen if pair[0] is not None and name in (None, pair[0]))
    found, mode = counted.most_common(1)[0][0] if counted else (name or "accuracy", None)
    split = "test" if _logged(runs, f"test/{found}") or not _logged(runs, f"val/{found}") else "val"
    return Metric(str(found), (mode or way(str(found))) != "min", split)


def last(run: RunData, metric: Metric) -> float:
    """The test metric in the last evaluated round."""
    values = run.column(metric.key)
    seen = np.flatnonzero(~np.isnan(values))
    return float(values[seen[-1]]) if len(seen) else _of_summary(run, "last", metric.key)


def best_round(run: RunData, metric: Metric) -> int | None:
    """Index of the first round with the best finite validation metric; None without a validation split."""
    values = run.column(f"val/{metric.name}")
    if not np.isfinite(values).any():
        return None
    worst = -math.inf if metric.higher else math.inf
    values = np.where(np.isfinite(values), values, worst)
    return int(values.argmax() if metric.higher else values.argmin())


def best(run: RunData, metric: Metric) -> float:
    """The test metric in the round that validation chooses."""
    index = best_round(run, metric)
    if index is None:
        return math.nan if len(run.columns["round"]) else _of_summary(run, "best", metric.key)
    return float(run.column(metric.key)[index])


def reached(run: RunData, metric: Metric, target: float) -> Reached:
    """Rounds, megabytes (up and down, all clients) and seconds until the test metric first reaches a target."""
    values = run.column(metric.key)
    with np.errstate(invalid="ignore"):
        beyond = at_target(values, target, "max" if metric.higher else "min")
    there = np.flatnonzero(np.isfinite(values) & beyond)
    if not len(there):
        return Reached(math.nan, math.nan, math.nan)
    i = there[0]
    return Reached(float(run.columns["round"][i]), float(megabytes(run)[i]), float(seconds(run)[i]))


def megabytes(run: RunData) -> np.ndarray:
    """Megabytes sent up and down by the end of each round, [rounds]; NaN where none were counted."""
    return (_total(run.column("comm/up_bytes")) + _total(run.column("comm/down_bytes"))) / 1e6


def seconds(run: RunData) -> np.ndarray:
    """Seconds by the end of each round, [rounds]; NaN where none were counted."""
    total = run.column("time/total")
    return total if np.isfinite(total).all() else _total(run.column("time/round"))


def payload(run: RunData) -> tuple[float, float]:
    """Megabytes (up, down) of a round, the mean over the rounds; NaN where none were counted."""
    found = []
    for key in ("comm/up_bytes", "comm/down_bytes"):
        values = run.column(key)
        found.append(float(values[np.isfinite(values)].mean()) / 1e6 if np.isfinite(values).any() else math.nan)
    return found[0], found[1]


def _names(runs: Sequence[RunData]) -> list[str]:
    """The metrics that some run has of the global model; none where no run was evaluated yet."""
    keys = {key for run in runs for key in (*run.columns, *(run.summary.get("last") or ()))}
    return sorted({key.partition("/")[2] for key in keys if key.startswith(("val/", "test/"))})


def _logged(runs: Sequence[RunData], key: str) -> bool:
    return any(key in run.columns for run in runs)


def _total(values: np.ndarray) -> np.ndarray:
    """Cumulative sum of what is finite; NaN throughout where nothing is."""
    there = np.isfinite(values)
    return np.cumsum(np.where(there, values, 0.0)) if there.any() else np.full(len(values), math.nan)


def _of_summary(run: RunData, moment: str, key: str) -> float:
    """For a run whose metrics.jsonl is lost."""
    row = run.summary.get(moment)
    value = row.get(key) if isinstance(row, dict) else None
    return float(value) if isinstance(value, int | float) else math.nan
