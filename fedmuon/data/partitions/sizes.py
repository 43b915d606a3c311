"""How many samples each client gets, and the check that so many can be had."""

from __future__ import annotations

import numpy as np

from fedmuon.constraints import check_fields
from fedmuon.data.schemas import Partition
from fedmuon.errors import UsageError


def pool_of(labels: np.ndarray | int, among: np.ndarray | None) -> np.ndarray:
    """The indices to distribute, int64: `among`, or all of them."""
    count = int(labels) if isinstance(labels, (int, np.integer)) else len(labels)
    return np.arange(count) if among is None else np.asarray(among, np.int64)


def labels_in(labels: np.ndarray | int, pool: np.ndarray, kind: str) -> np.ndarray:
    """The labels of `pool` [n]. Raises UsageError where the data set has none."""
    if isinstance(labels, (int, np.integer)):
        raise UsageError(
            f"partition={kind}: follows labels, and the data set has none; use partition=iid, quantity or file"
        )
    return np.asarray(labels)[pool]


def check_sizes(samples: int, clients: int, min_size: int) -> None:
    """Raise UsageError unless every one of `clients` can have `min_size` of `samples`."""
    if clients < 1:
        raise UsageError(f"federation.clients={clients}: must be at least 1")
    check_fields(Partition, "partition.", min_size=min_size)
    if min_size > samples // clients:
        raise UsageError(
            f"partition.min_size={min_size}: {samples} samples over federation.clients={clients} leave "
            f"{samples // clients} for the smallest client; allowed is 0 to {samples // clients}; "
            f"lower it or use at most {samples // min_size} clients"
        )


def equal_sizes(samples: int, clients: int, min_size: int) -> np.ndarray:
    """Equal shares, int64 [clients]; the first samples % clients are one larger. Raises as `check_sizes`."""
    check_sizes(samples, clients, min_size)
    share, rest = divmod(samples, clients)
    return share + (np.arange(clients) < rest).astype(np.int64)


def shared_out(samples: int, shares: np.ndarray) -> np.ndarray:
    """`samples` divided in proportion to `shares` [clients], which add up to 1: whole numbers by largest remainders."""
    exact = samples * shares
    sizes = np.floor(exact).astype(np.int64)
    rest = samples - int(sizes.sum())
    sizes[np.argsort(sizes - exact, kind="stable")[:rest]] += 1
    return sizes


def with_minimum(sizes: np.ndarray, min_size: int) -> np.ndarray:
    """The sizes after the largest have given the smallest what these lack of `min_size`; the sum stays.

    All that give end at one level, or one above it, so nobody changes more than needed. sum >= clients * min_size.
    """
    lacking = int(np.maximum(min_size - sizes, 0).sum())
    if not lacking:
        return sizes
    level, high = min_size, int(sizes.max())  # giving what lies above `level` is enough, above `high` it is not
    while high - level > 1:
        middle = (level + high) // 2
        level, high = (middle, high) if np.maximum(sizes - middle, 0).sum() >= lacking else (level, middle)
    over = np.maximum(sizes - level, 0)
    raised = np.clip(sizes, min_size, level)
    raised[np.flatnonzero(over)[: int(over.sum()) - lacking]] += 1
    return raised
