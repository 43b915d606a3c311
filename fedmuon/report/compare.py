"""Which settings distinguish runs, and the groups that differ in nothing but the seed.

A group's figures are means over its seeds: over its complete runs, or over all of them, and marked as "so far", where
none is complete. `results` says what is measured of a run, `statistics` how it is averaged and tested.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedmuon.apart import computed
from fedmuon.errors import UsageError, nearest
from fedmuon.report.results import Metric, best, last
from fedmuon.report.runs import RunData
from fedmuon.report.statistics import PairedTest, Spread, holm, paired, spread

STORE = "federation.store"  # the same result; to a sweep another run: what clients keep lies in it
SEEDS = ("partition.seed", "model.seed", "data.seed", "sampler.seed")  # follow `seed` unless given
NAMES = ("algorithm", "server", "data", "partition", "model", "sampler", "engine")
METHOD = ("algorithm.", "server.", "local.")  # what a method is made of; the rest is where it is tried
PLACE = ("data.", "partition.", "model.", "federation.")  # of the rest: must agree even where the method implies it
BASELINE = "fedavg"
DERIVED = ("local.schedule_rounds",)  # follow other keys unless given
ABSENT = "absent"


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ in nothing but the seed.

    settings  the values of the keys that decide, those it lacks left out
    runs      one a seed: the one that is furthest, a failed one where there is no other
    repeated  others of the same seeds
    """

    label: str
    settings: Mapping[str, Any]
    runs: tuple[RunData, ...]
    repeated: tuple[RunData, ...] = ()

    @property
    def counted(self) -> tuple[RunData, ...]:
        """The runs that its means are taken over: complete ones, else all that have not failed."""
        complete = tuple(run for run in self.runs if run.complete)
        return complete or tuple(run for run in self.runs if run.status != "failed")

    @property
    def so_far(self) -> bool:
        """Whether its figures are those of runs that have not done all their rounds."""
        return not any(run.complete for run in self.runs)

    def last(self, metric: Metric) -> Spread:
        """Test metric in the last round, over seeds."""
        return spread(last(run, metric) for run in self.counted)

    def best(self, metric: Metric) -> Spread:
        """Test metric in the round that validation chooses, over seeds."""
        return spread(best(run, metric) for run in self.counted)


def groups(runs: Sequence[RunData]) -> list[Group]:
    """Runs grouped by what decides, in the order of their settings."""
    configs = dict(zip(runs, own_settings([run.config for run in runs]), strict=True))
    keys = deciding(list(configs.values()))
    members: dict[tuple[str, ...], list[RunData]] = {}
    for run, config in configs.items():
        members.setdefault(tuple(canonical(config.get(key, ABSENT)) for key in keys), []).append(run)
    found = []
    for together in members.values():
        first = configs[together[0]]
        settings = {key: first[key] for key in keys if key in first}
        furthest: dict[str, RunData] = {}
        for run in sorted(together, key=_how_far):
            furthest[canonical(run.seed)] = run
        chosen = sorted(furthest.values(), key=lambda run: _order(run.seed))
        others = tuple(run for run in together if run not in chosen)
        found.append(Group(label(settings, keys) or _name(together[0]), settings, tuple(chosen), others))
    return sorted(found, key=lambda group: [_order(group.settings.get(key)) for key in keys])


def own_settings(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What decides of flat configurations, without the seeds that follow the run's own: equal to it, and not to that of
    other seeds."""
    seeds = [canonical(config.get("seed")) for config in configs]
    found = [_settings(config) for config in configs]
    for key in SEEDS:
        tried: dict[str, set[str]] = {}
        for config, seed in zip(configs, seeds, strict=True):
            tried.setdefault(canonical(config.get(key)), set()).add(seed)
        for config, seed in zip(found, seeds, strict=True):
            if canonical(config.get(key)) == seed and tried[seed] == {seed}:
                config.pop(key, None)
    return found


def varying(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys whose values differ between flat configurations; what decides nothing, the seed and what follows it are not
    counted.

    Names come first, then the method's keys, then the rest, each in alphabetical order.
    """
    own = own_settings(configs)
    names = {key for config in own for key in config} - {"seed"}
    differing = [key for key in names if len({canonical(config.get(key, ABSENT)) for config in own}) > 1]
    return sorted(differing, key=_rank)


def deciding(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The fewest of the varying keys that tell runs apart: none that follows from those before it.

    Where every algorithm comes with a rate of its own, the rate follows from the algorithm; where rates were tried for
    one of them, it does not.
    """
    kept: list[str] = []
    own = own_settings(configs)
    parts: list[tuple[str, ...]] = [()] * len(own)
    for key in varying(own):
        finer = [(*part, canonical(config.get(key, ABSENT))) for part, config in zip(parts, own, strict=True)]
        if len(set(finer)) > len(set(parts)):
            kept, parts = [*kept, key], finer
    return kept


def label(settings: Mapping[str, Any], keys: Sequence[str]) -> str:
    """ "fedmuon, lr=0.1": names alone, other keys by their last part where that tells them apart, and from the seed."""
    shorts = ["seed", *(key.rpartition(".")[2] for key in keys)]
    words = []
    for key in keys:
        if key not in settings:
            continue
        short = key.rpartition(".")[2]
        name = short if shorts.count(short) == 1 else key
        words.append(shown(settings[key]) if _named(key) else f"{name}={shown(settings[key])}")
    return ", ".join(words)


def baseline_of(runs: Sequence[RunData], name: str | None) -> str:
    """The baseline algorithm named, FedAvg by default. Raises UsageError for one that no run has, nor is to have."""
    known = sorted({str(run.config["algorithm.name"]) for run in runs if "algorithm.name" in run.config})
    going_on = any(run.status == "running" for run in runs)  # of a sweep, of which more may come
    if name is not None and name not in known and not going_on:
        allowed = ", ".join(known) or "none"
        raise UsageError(f"--baseline {name}: no run has this algorithm{nearest(name, known)}; allowed: {allowed}")
    return name or BASELINE


def reference(all_groups: Sequence[Group], group: Group, metric: Metric, algorithm: str = BASELINE) -> Group | None:
    """The group of the baseline algorithm tried where `group` was, the best of several, complete ones first; None where
    there is none."""
    same = [other for other in all_groups if _algorithm(other) == algorithm and _place(other) == _place(group)]
    sign = 1 if metric.higher else -1
    having = [other for other in same if other.last(metric).seeds]
    return max(having, key=lambda other: (not other.so_far, sign * other.last(metric).mean), default=None)


def significance(all_groups: Sequence[Group], against: Group, metric: Metric) -> list[tuple[PairedTest, float] | None]:
    """Of each group, a paired test of its last results against another group's, with Holm's adjusted p.

    None for itself, where common seeds are too few, and where either has no complete run: rounds are not methods.
    """
    theirs = _by_seed(against, metric)
    tested = [not (group is against or group.so_far or against.so_far) for group in all_groups]
    found = [
        paired(_by_seed(group, metric), theirs) if fair else None
        for group, fair in zip(all_groups, tested, strict=True)
    ]
    adjusted = iter(holm([test.p for test in found if test is not None]))
    return [None if test is None else (test, next(adjusted)) for test in found]


def shown(value: Any) -> str:
    """A value as YAML writes it, numbers in their shortest form."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def canonical(value: Any) -> str:
    """The same text for the same value, 1 and 1.0 alike."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return repr(float(value)) if number else json.dumps(value, sort_keys=True, default=str)


def _how_far(run: RunData) -> tuple[bool, bool, int, str]:
    """Sorts runs of one configuration and seed, the one that counts last."""
    return run.complete, run.status != "failed", run.rounds, str(run.summary.get("started"))


def _by_seed(group: Group, metric: Metric) -> dict[Any, float]:
    return {canonical(run.seed): last(run, metric) for run in group.counted}


def _algorithm(group: Group) -> Any:
    return group.runs[0].config.get("algorithm.name")


def _place(group: Group) -> dict[str, str]:
    """Where a method was tried. What decides is not enough: the data set may follow from the algorithm."""
    decided = {key: value for key, value in group.settings.items() if not key.startswith(METHOD)}
    all_of_it = _settings(group.runs[0].config).items()
    own = {key: value for key, value in all_of_it if key.startswith(PLACE) and key not in SEEDS}
    return {key: canonical(value) for key, value in (own | decided).items()}


def _name(run: RunData) -> str:
    return str(run.config.get("algorithm.name") or run.name)


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """What decides of a flat configuration. A `_target_` follows from its option's name, which a callback has not."""
    return {
        key.removesuffix("._target_"): value
        for key, value in computed(config).items()
        if key != STORE and (key.startswith("callbacks.") or not key.endswith("._target_"))
    }


def _named(key: str) -> bool:
    group, _, leaf = key.rpartition(".")
    return leaf == "name" and group in NAMES


def _rank(key: str) -> tuple[int, int, str]:
    if _named(key):
        return 0, NAMES.index(key.rpartition(".")[0]), key
    if key in DERIVED:
        return 2, 0, key
    return 1, 0 if key.startswith(METHOD) else 1, key


def _order(value: Any) -> tuple[int, float, str]:
    """Sorts what is absent first, then numbers, then the rest as text."""
    if value is None:
        return 0, 0.0, ""
    number = isinstance(value, int | float)
    return (1, float(value), "") if number else (2, 0.0, str(value))
