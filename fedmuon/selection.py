"""Names of metrics, which way one is better where its name says so, what is at a target, and the worst. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, MutableMapping
from typing import Any

import numpy as np

from fedmuon.errors import UsageError, nearest

_LARGER, _SMALLER = ("accuracy", "acc"), ("loss", "error", "perplexity", "nll", "mse", "rmse", "mae")
_OF_VALIDATION = ("val/", "val_", "valid/", "valid_")
_OF_A_SPLIT = (*_OF_VALIDATION, "test/", "test_", "train/", "train_")
_WAYS = {**dict.fromkeys(_LARGER, "max"), **dict.fromkeys(_SMALLER, "min")}


def way(metric: str) -> str | None:
    """max or min, by the words of a name such as top5_acc, val-loss or MulticlassAccuracy; None where none tells."""
    words = {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", metric)}
    found = {_WAYS[word] for word in words & _WAYS.keys()}
    return found.pop() if len(found) == 1 else None


def bare(name: str, prefixes: Iterable[str] = _OF_A_SPLIT) -> str:
    """A metric's name without the split in front: `val_loss`, `val/loss` and `loss` are all `loss`."""
    for prefix in prefixes:
        name = name.removeprefix(prefix)
    return name


def settle(chosen: MutableMapping[Any, Any]) -> None:
    """The metric of an `evaluation` node under the name it is recorded by, and the mode that this name says."""
    metric = chosen.get("metric")
    if isinstance(metric, str):
        chosen["metric"] = metric = bare(metric, _OF_VALIDATION)
    if chosen.get("mode") is None:
        chosen["mode"] = way(str(metric))


def at_target(value: Any, target: float, mode: str) -> Any:
    """Whether a value, or each of an array, is at a target or beyond; what float32 may round away does not count."""
    slack = 1e-6 * abs(target)
    return value >= target - slack if mode == "max" else value <= target + slack


def worst_tenth(values: np.ndarray, higher: bool) -> float:
    """Mean over the worst 10 % of some clients' figures [clients], at least one; higher: whether larger is better."""
    ordered = np.sort(values if higher else -values)[: max(1, len(values) // 10)]
    return float(ordered.mean() if higher else -ordered.mean())


def check(metric: str, mode: str | None) -> None:
    """Raise UsageError where nothing says which way is better, and where the mode would choose the worst round."""
    known = way(metric)
    if mode is None:
        raise UsageError(
            f"evaluation.metric={metric}: whether larger or smaller is better is not known"
            f"{nearest(metric, _WAYS)}; set evaluation.mode=max or min"
        )
    if mode in ("max", "min") and known not in (None, mode):
        better = "larger" if known == "max" else "smaller"
        raise UsageError(
            f"evaluation.mode={mode}: evaluation.metric={metric} is better where it is {better}; "
            "leave evaluation.mode away"
        )
