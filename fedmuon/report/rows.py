"""The rows of the comparison, a row a group: what the page and the Markdown, LaTeX and CSV tables all show."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedmuon.report.compare import BASELINE, Group, reference, significance
from fedmuon.report.results import Metric, Reached, payload, reached
from fedmuon.report.runs import RunData
from fedmuon.report.statistics import PairedTest, Spread, spread

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Effort:
    """What a group needs to reach a target: means over the seeds that reach it, `seeds` of each Spread.

    speed_up  rounds of the reference divided by rounds of the group, where every seed of both reaches it; else NaN
    """

    rounds: Spread
    megabytes: Spread
    seconds: Spread
    speed_up: float


@dataclass(frozen=True, eq=False)
class Row:
    """One group.  payload: MB a round, (up, down);  against: the group it is compared with;  test: with Holm's p."""

    group: Group
    last: Spread
    best: Spread
    efforts: dict[float, Effort]
    payload: tuple[float, float]
    parameters: Any
    status: str
    against: Group | None
    test: tuple[PairedTest, float] | None
    mark: str

    def some(self, found: Spread) -> str:
        """ " (2 of 3)", where a mean is not over all runs of the group, else ""."""
        return f" ({found.seeds} of {len(self.group.runs)})" if 0 < found.seeds < len(self.group.runs) else ""


def rows(groups: Sequence[Group], metric: Metric, targets: Sequence[float], baseline: str = BASELINE) -> list[Row]:
    """A row for every group, each tested against the baseline algorithm at the same place."""
    against = [reference(groups, group, metric, baseline) for group in groups]
    tests: dict[Group, tuple[PairedTest, float] | None] = {}
    for one in {theirs for theirs in against if theirs is not None}:
        compared = [group for group, theirs in zip(groups, against, strict=True) if theirs is one]
        tests |= dict(zip(compared, significance(compared, one, metric), strict=True))
    rounds = {group: {target: _rounds(group, metric, target) for target in targets} for group in groups}
    return [
        Row(
            group=group,
            last=group.last(metric),
            best=group.best(metric),
            efforts={t: _effort(rounds[group][t], rounds[theirs][t] if theirs else None) for t in targets},
            payload=_payload(group),
            parameters=next((run.summary["parameters"] for run in group.runs if "parameters" in run.summary), None),
            status=status(group.runs),
            against=theirs,
            test=tests.get(group),
            mark=mark(tests.get(group), metric),
        )
        for group, theirs in zip(groups, against, strict=True)
    ]


def mark(test: tuple[PairedTest, float] | None, metric: Metric) -> str:
    """ "better" or "worse", where the seeds make a difference significant, else ""."""
    if test is None or test[1] >= SIGNIFICANT:
        return ""
    return "better" if (test[0].difference > 0) == metric.higher else "worse"


def status(runs: Sequence[RunData]) -> str:
    """ "3 finished", "2 finished, 1 failed": the states of some runs."""
    return ", ".join(f"{count} {name}" for name, count in Counter(run.status for run in runs).most_common())


def machines(rows: Sequence[Row]) -> list[str]:
    """The machines, devices and threads that the rows' runs tell of."""
    told = (run.summary.get("machine") for row in rows for run in row.group.counted)
    return sorted({str(machine) for machine in told if machine})


def targets_of(runs: Sequence[RunData], metric: Metric, given: Sequence[float] = ()) -> list[float]:
    """The targets given, else those of the runs' configurations that some run reaches, in the order of difficulty."""
    aims = set(given)
    if not given:
        lists = [found for run in runs if isinstance(found := run.config.get("evaluation.targets"), list)]
        asked = {float(value) for values in lists for value in values if isinstance(value, int | float)}
        aims = {aim for aim in asked if any(math.isfinite(reached(run, metric, aim).round) for run in runs)}
    return sorted(aims, reverse=not metric.higher)


def shown_target(rows: Sequence[Row], targets: Sequence[float]) -> float | None:
    """The most difficult target that at least half of the groups reach with every seed, else the first."""
    for target in reversed(targets):
        hit = [row.efforts[target].rounds.seeds == len(row.group.counted) > 0 for row in rows]
        if 2 * sum(hit) >= len(hit):
            return target
    return targets[0] if targets else None


def _rounds(group: Group, metric: Metric, target: float) -> list[Reached]:
    return [reached(run, metric, target) for run in group.counted]


def _effort(ours: list[Reached], theirs: list[Reached] | None) -> Effort:
    speed_up = math.nan
    if ours and theirs and all(math.isfinite(one.round) for one in ours + theirs):
        speed_up = spread(one.round for one in theirs).mean / spread(one.round for one in ours).mean
    return Effort(
        rounds=spread(one.round for one in ours),
        megabytes=spread(one.megabytes for one in ours),
        seconds=spread(one.seconds for one in ours),
        speed_up=speed_up,
    )


def _payload(group: Group) -> tuple[float, float]:
    sent = [payload(run) for run in group.counted]
    return spread(up for up, _ in sent).mean, spread(down for _, down in sent).mean
