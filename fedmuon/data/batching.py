"""Which samples every local step of a client sees."""

from __future__ import annotations

import math

import numpy as np

from fedmuon.errors import UsageError
from fedmuon.randomness import stream


def batches(
    seed: int,
    round: int,
    client: int,
    *,
    samples: np.ndarray | int,
    batch_size: int,
    steps: int | None = None,
    epochs: float | None = None,
    drop_last: bool = False,
) -> list[np.ndarray]:
    """The indices of every local step's batch, a pure function of (seed, round, client) and the arguments.

    Shuffled epochs without replacement follow on one another until `steps` batches are made, or
    `epochs` times the batches of an epoch (see `steps_of`). samples: the client's indices int64 [n], or n for 0..n-1.
    The last batch of an epoch is short unless drop_last; a client smaller than a batch has one short batch an epoch.
    A client without samples has no batches. Raises UsageError as `steps_of` does.
    """
    indices = np.arange(samples) if isinstance(samples, (int, np.integer)) else np.asarray(samples)
    count = len(indices)
    total = steps_of(count, batch_size, steps, epochs, drop_last)
    rng = stream(seed, "batches", round, client)
    made: list[np.ndarray] = []
    while len(made) < total:
        order = indices[rng.permutation(count)]
        starts = range(0, _batches_per_epoch(count, batch_size, drop_last) * batch_size, batch_size)
        made.extend(order[start : start + batch_size] for start in starts[: total - len(made)])
    return made


def steps_of(
    n: int, batch_size: int, steps: int | None = None, epochs: float | None = None, drop_last: bool = False
) -> int:
    """The number of local steps K_i of a client with n samples: 0 if n is 0, else `steps`, or
    epochs * (batches an epoch) to the nearest whole number (halves upwards), at least 1.

    Raises UsageError unless exactly one of steps and epochs is given, and for values that are not above 0.
    """
    if batch_size < 1:
        raise UsageError(f"local.batch_size={batch_size}: must be at least 1")
    if (steps is None) == (epochs is None):
        raise UsageError(f"local.steps={steps}, local.epochs={epochs}: set exactly one of the two, the other to null")
    if steps is not None and steps < 1:
        raise UsageError(f"local.steps={steps}: must be at least 1")
    if epochs is not None and not (math.isfinite(epochs) and epochs > 0):
        raise UsageError(f"local.epochs={epochs}: must be a finite number above 0; fractions such as 0.5 are allowed")
    if n == 0:
        return 0
    if steps is not None:
        return steps
    assert epochs is not None
    return max(1, math.floor(epochs * _batches_per_epoch(n, batch_size, drop_last) + 0.5))


def _batches_per_epoch(n: int, batch_size: int, drop_last: bool) -> int:
    return max(1, n // batch_size) if drop_last else -(-n // batch_size)
