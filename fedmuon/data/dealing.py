"""How samples are put in order and dealt out: shuffled class by class, whole groups into bins."""

from __future__ import annotations

import heapq

import numpy as np


def shuffled_by(keys: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The positions of `keys` [n] in ascending order of the keys, those of equal ones shuffled, int64 [n]."""
    order = rng.permutation(len(keys))
    return order[np.argsort(keys[order], kind="stable")]


def ranks(sizes: np.ndarray) -> np.ndarray:
    """0, 1, ... within each of several runs, one after the other, int64 [sum of sizes]: 0 1 0 1 2 for 2 and 3."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def packed(sizes: np.ndarray, bins: int, rng: np.random.Generator) -> np.ndarray:
    """The bin of each whole group, int64 [groups]: the largest first, each to the bin that has the fewest samples.

    sizes: samples of each group, int [groups]. Groups of one size follow in random order; of equal bins the first is
    taken.
    """
    bin_of, filled = np.empty(len(sizes), np.int64), [(0, one) for one in range(bins)]
    for group in shuffled_by(-sizes, rng):
        samples, one = heapq.heappop(filled)
        bin_of[group] = one
        heapq.heappush(filled, (samples + int(sizes[group]), one))
    return bin_of
