"""Everything that the page shows, as one JSON object; the page's scripts only draw it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedmuon.report import palette
from fedmuon.report.clients import fairness
from fedmuon.report.compare import Group, baseline_of, deciding, groups, shown, significance
from fedmuon.report.curves import curves, rounded, series
from fedmuon.report.partitions import partitions
from fedmuon.report.results import Metric, best, best_round, last, metric_of
from fedmuon.report.rows import Row, machines, mark, rows, shown_target, status, targets_of
from fedmuon.report.runs import RunData
from fedmuon.report.statistics import Spread

POINTS = 250  # of a curve; fewer where there are many groups
ALL_POINTS = 25_000  # of all curves together
SEED_CURVES = 60  # runs up to which every seed has curves of its own
PAIRS = 40  # groups up to which any of them can be the reference


def content(
    runs: Sequence[RunData],
    problems: Sequence[str] = (),
    *,
    title: str = "",
    metric: str | None = None,
    targets: Sequence[float] = (),
    baseline: str | None = None,
) -> dict[str, Any]:
    """The report of some runs as plain numbers, text, lists and dicts; what is not finite is None.

    metric, baseline: None takes what the runs select by, and FedAvg. Raises UsageError for those that no run has.
    """
    chosen, baseline = metric_of(runs, metric), baseline_of(runs, baseline)
    found = groups(runs)
    aims = targets_of(runs, chosen, targets)
    number = {run: i for i, run in enumerate(runs)}
    points = max(40, min(POINTS, ALL_POINTS // len(found)))
    divided, damaged = partitions(runs)
    lines = rows(found, chosen, aims, baseline)
    aim = shown_target(lines, aims)
    configs = [{key: shown(value) for key, value in run.config.items()} for run in runs]
    common = _common(configs)
    return {
        "title": title,
        "made": time.strftime("%Y-%m-%d %H:%M"),
        "metric": {
            "name": chosen.name,
            "key": chosen.key,
            "title": chosen.title,
            "higher": chosen.higher,
            "percent": is_share(chosen.name),
        },
        "targets": [f"{aim:g}" for aim in aims],
        "target": None if aim is None else f"{aim:g}",
        "baseline": baseline,
        "palette": {"light": palette.LIGHT, "dark": palette.DARK, "dashes": palette.DASHES},
        "status": status(runs),
        "machines": machines(lines),
        "keys": deciding([run.config for run in runs]),
        "series": series(chosen),
        "groups": [_group(row, number, found) for row in lines],
        "curves": [curves(group, chosen, points, len(runs) <= SEED_CURVES) for group in found],
        "tests": _tests(found, chosen) if len(found) <= PAIRS else None,
        "clients": fairness(found, chosen),
        "partitions": divided,
        "runs": [_run(run, chosen, found) for run in runs],
        "common": common,
        "own": [{key: value for key, value in config.items() if key not in common} for config in configs],
        "problems": list(dict.fromkeys([*problems, *_noticed(runs, found, chosen), *damaged])),
    }


def title_of(folders: Sequence[Path]) -> str:
    """A page's title from the folders that it is about."""
    names = [folder.resolve().name for folder in folders]
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} more"


def is_share(metric: str) -> bool:
    """Whether a metric is a share that reads well in per cent."""
    return any(word in metric.lower() for word in ("acc", "f1", "auroc", "precision", "recall"))


def _group(row: Row, number: Mapping[RunData, int], found: Sequence[Group]) -> dict[str, Any]:
    return {
        "label": row.group.label,
        "settings": {key: plain(value) for key, value in row.group.settings.items()},
        "runs": [number[run] for run in row.group.runs],
        "counted": len(row.group.counted),
        "so_far": row.group.so_far,
        "last": _spread(row.last),
        "best": _spread(row.best),
        "efforts": {
            f"{target:g}": {
                "rounds": _spread(effort.rounds),
                "mb": _spread(effort.megabytes),
                "s": _spread(effort.seconds),
                "speed_up": _number(effort.speed_up),
            }
            for target, effort in row.efforts.items()
        },
        "payload": rounded(np.array(row.payload)),
        "parameters": row.parameters,
        "status": row.status,
        "against": None if row.against is None else found.index(row.against),
        "test": None
        if row.test is None
        else [*rounded(np.array([row.test[0].difference, row.test[0].p, row.test[1]]))],
        "mark": row.mark,
    }


def _tests(found: Sequence[Group], metric: Metric) -> list[list[Any]]:
    """[reference][group]: difference, p, Holm's p and mark, or None."""
    return [
        [
            None if test is None else [*rounded(np.array([test[0].difference, test[0].p, test[1]])), mark(test, metric)]
            for test in significance(found, one, metric)
        ]
        for one in found
    ]


def _run(run: RunData, metric: Metric, found: Sequence[Group]) -> dict[str, Any]:
    at = best_round(run, metric)
    return {
        "path": str(run.path),
        "seed": plain(run.seed),
        "status": run.status,
        "cause": str(run.summary.get("cause") or ""),
        "rounds": run.rounds,
        "planned": plain(run.config.get("federation.rounds")),
        "last": _number(last(run, metric)),
        "best": _number(best(run, metric)),
        "best_round": None if at is None else int(run.columns["round"][at]),
        "group": next(i for i, group in enumerate(found) if run in group.runs or run in group.repeated),
    }


def _noticed(runs: Sequence[RunData], found: Sequence[Group], metric: Metric) -> Iterator[str]:
    """What could not be read of some runs, and what of them is not among the means."""
    for run in runs:
        yield from run.problems
    for run in (run for group in found for run in group.counted if math.isinf(last(run, metric))):
        yield f"{run.path}: its {metric.title} in the last round is not finite; it has no part in the mean"
    for run in (run for group in found for run in group.repeated):
        yield f"{run.path}: the same configuration and seed as another run, which counts instead"


def _common(configs: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The settings that all runs share."""
    first = configs[0]
    return {key: value for key, value in first.items() if all(config.get(key) == value for config in configs)}


def plain(value: Any) -> Any:
    """A setting as JSON has it: numbers that are not finite as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    finite = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    return value if value is None or finite else shown(value)


def _spread(one: Spread) -> list[float | int | None]:
    """[mean, deviation, seeds]"""
    return [*rounded(np.array([one.mean, one.deviation])), one.seeds]


def _number(value: float) -> float | None:
    return rounded(np.array([value]))[0]
