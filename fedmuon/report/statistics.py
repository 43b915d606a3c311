"""Means over seeds and paired tests between methods that share seeds."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

FEWEST = 3  # common seeds below which no test is made


class Spread(NamedTuple):
    """Mean and sample deviation (n - 1) of the finite values; deviation NaN for one, both NaN for none."""

    mean: float
    deviation: float
    seeds: int


class PairedTest(NamedTuple):
    """A paired two-sided t-test: mean difference, p-value, number of pairs."""

    difference: float
    p: float
    pairs: int


def spread(values: Iterable[float]) -> Spread:
    """Mean and sample deviation of what is finite."""
    kept = np.array([value for value in values if math.isfinite(value)])
    if not len(kept):
        return Spread(math.nan, math.nan, 0)
    return Spread(float(kept.mean()), float(kept.std(ddof=1)) if len(kept) > 1 else math.nan, len(kept))


def paired(ours: Mapping[Hashable, float], theirs: Mapping[Hashable, float]) -> PairedTest | None:
    """Whether `ours` differ from `theirs` over their common seeds; None with fewer than three of them."""
    pairs = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    differences = np.array([a - b for a, b in pairs if math.isfinite(a) and math.isfinite(b)])
    count = len(differences)
    if count < FEWEST:
        return None
    mean, deviation = float(differences.mean()), float(differences.std(ddof=1))
    if deviation <= 1e-12 * abs(mean):  # the same difference in every seed, up to rounding
        return PairedTest(mean, 0.0 if mean else 1.0, count)
    return PairedTest(mean, two_sided(mean / (deviation / math.sqrt(count)), count - 1), count)


def two_sided(t: float, freedom: int) -> float:
    """P(|T| > |t|) of Student's distribution, `freedom` a whole number (Abramowitz and Stegun, 26.7.3 and 4)."""
    angle = math.atan2(abs(t), math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = total = cosine if odd else 1.0
    for k in range(2 + odd, freedom - 1 + odd, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    if not odd:
        inside = sine * total
    else:
        inside = 2 / math.pi * (angle + (sine * total if freedom > 1 else 0.0))
    return min(1.0, max(0.0, 1.0 - inside))


def holm(values: Sequence[float]) -> list[float]:
    """p-values adjusted for being several (Holm, 1979), in the order given."""
    order = sorted(range(len(values)), key=values.__getitem__)
    adjusted = [0.0] * len(values)
    largest = 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - rank) * values[i]))
        adjusted[i] = largest
    return adjusted
