"""How evenly a method serves its clients: each client's own accuracy, and the mean of the worst tenth.

A run has these figures with `data.client_validation` and `evaluation.clients_every`. A client's figure is that of the
last round in which it was evaluated: "before" is the global model, "after" the client's own after local training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmuon.report.compare import Group
from fedmuon.report.curves import rounded
from fedmuon.report.results import Metric
from fedmuon.report.runs import RunData, read_lines
from fedmuon.report.statistics import spread
from fedmuon.selection import worst_tenth

MOMENTS = ("before", "after")
POINTS = 51  # of the curve over the clients in ascending order


def latest(run: RunData, metric: Metric) -> dict[str, np.ndarray]:
    """{"before", "after"}: the metric of each client that was evaluated, in its latest evaluation."""
    if not any(key.startswith("clients/") for key in run.columns):
        return {}  # no need to read a long file
    found: dict[str, dict[int, float]] = {moment: {} for moment in MOMENTS}
    for row in read_lines(run.path / "clients.jsonl", [], only=[f'"{moment}/'.encode() for moment in MOMENTS]):
        for moment in MOMENTS:
            value = row.get(f"{moment}/{metric.name}")
            if isinstance(value, int | float) and "client" in row:
                found[moment][row["client"]] = value
    return {moment: np.array(list(by.values()), float) for moment, by in found.items() if by}


def fairness(groups: Sequence[Group], metric: Metric) -> list[dict[str, Any]]:
    """Of every group and moment: sorted figures of its clients (all seeds together), and means over the seeds."""
    found = []
    for number, group in enumerate(groups):
        runs = [latest(run, metric) for run in group.counted]
        for moment in MOMENTS:
            values = [run[moment] for run in runs if moment in run]
            if not values:
                continue
            together = np.quantile(np.concatenate(values), np.linspace(0, 1, POINTS))
            figures = {
                "mean": spread(float(v.mean()) for v in values),
                "deviation": spread(float(v.std()) for v in values),
                "worst": spread(worst_tenth(v, metric.higher) for v in values),
            }
            found.append(
                {
                    "group": number,
                    "moment": moment,
                    "clients": int(np.mean([len(v) for v in values])),
                    "curve": rounded(together, 4),
                    **{name: rounded(np.array([one.mean, one.deviation])) for name, one in figures.items()},
                }
            )
    return found
