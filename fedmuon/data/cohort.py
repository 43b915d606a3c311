"""Which clients take part in a round: pure functions of (seed, round), with the ids as int64 [up to cohort].

A sampler is called as sampler(seed, round, clients, cohort, *, sizes, **parameters); `sizes` [clients] are the numbers
of samples. Rounds count from 0. It may give fewer than `cohort` clients, or none where nobody can take part.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

import numpy as np

from fedmuon.data.rows import read_arrays, read_rows
from fedmuon.errors import UsageError
from fedmuon.randomness import stream


def uniform(seed: int, round: int, clients: int, cohort: int, *, sizes: np.ndarray | None = None) -> np.ndarray:
    """`cohort` of `clients` clients, drawn uniformly without replacement, ascending.

    Memory grows with the cohort, not with the population (Floyd's method).
    """
    return np.sort(stream(seed, "cohort", round).choice(clients, size=cohort, replace=False, shuffle=False))


def weighted(seed: int, round: int, clients: int, cohort: int, *, sizes: np.ndarray) -> np.ndarray:
    """Clients drawn one after the other without replacement, each time proportionally to their samples; ascending.

    The first `cohort` of clients that arrive after exponential times with rates `sizes` (Efraimidis and Spirakis 2006).
    Clients without samples never come. Larger clients count twice where aggregation.weights=samples as well.
    """
    holders = np.flatnonzero(sizes)
    arrival = stream(seed, "cohort", round).standard_exponential(len(holders)) / sizes[holders]
    first = min(cohort, len(holders))
    if not first:
        return holders
    return np.sort(holders[np.argpartition(arrival, first - 1)[:first]])


def fixed(
    seed: int,
    round: int,
    clients: int,
    cohort: int,
    *,
    sizes: np.ndarray | None = None,
    path: str | Path | None = None,
    repeat: bool = False,
) -> np.ndarray:
    """Row `round` of a schedule, in its order: `cohorts` [rounds, clients a round] in an .npz or .json, -1 fills up.

    repeat=True starts again after the last row. Raises UsageError for an unreadable file, a row that is missing, longer
    than the cohort, names a client twice or one that does not exist.
    """
    if path is None:
        raise UsageError("sampler.path=null: name the file with the schedule, an .npz or a .json")
    values, starts = _schedule(path, _changed(path))
    row = _row(round, len(starts) - 1, path, repeat)
    ids = values[starts[row] : starts[row + 1]]
    where = f"sampler.path={path}: row {row} (counted from 0)"
    if len(ids) > cohort:
        raise UsageError(
            f"{where} names {len(ids)} clients, federation.cohort is {cohort}; set federation.cohort={len(ids)}"
        )
    if len(wrong := ids[(ids < 0) | (ids >= clients)]):
        raise UsageError(f"{where} names client {wrong[0]}; federation.clients={clients} are counted from 0")
    if len(np.unique(ids)) < len(ids):
        raise UsageError(f"{where} names a client twice; each may take part once a round")
    return ids.copy()


def published(
    seed: int, round: int, clients: int, cohort: int, *, sizes: np.ndarray | None = None, legacy_seed: int = 42
) -> np.ndarray:
    """The cohorts behind the results published with FedMuon (arXiv 2510.27403), in their order.

    NumPy's legacy generator, seeded with `legacy_seed` whatever the run's seed is; each round shuffles
    0 ... clients - 1 anew and takes the first `cohort`. Round r costs r + 1 shuffles: what ran before is no matter.
    """
    legacy = np.random.RandomState(legacy_seed)
    for _ in range(round):
        legacy.permutation(clients)
    return legacy.permutation(clients)[:cohort].astype(np.int64)


def availability(
    seed: int,
    round: int,
    clients: int,
    cohort: int,
    *,
    sizes: np.ndarray | None = None,
    probability: float = 0.5,
    path: str | Path | None = None,
    repeat: bool = False,
) -> np.ndarray:
    """A uniform draw of up to `cohort` from the clients that are available in this round, ascending; possibly none.

    A client is available with `probability`, independently in every round. A file (.npz or .json) gives each client its
    own probability [clients], or is a trace of 0 and 1 [rounds, clients], whose row says who is available;
    repeat=True starts a trace again after its last row. Raises UsageError for a file that is neither, or too short.
    """
    if path is None:
        likely: float | np.ndarray = probability
    else:
        table = _availabilities(path, _changed(path))
        if table.shape[-1] != clients:
            raise UsageError(
                f"sampler.path={path}: has {table.shape[-1]} clients a row, federation.clients is {clients}; "
                "they must agree"
            )
        likely = table if table.ndim == 1 else table[_row(round, len(table), path, repeat)]
    here = np.flatnonzero(stream(seed, "availability", round).random(clients) < likely)
    if len(here) <= cohort:
        return here
    return here[uniform(seed, round, len(here), cohort)]


def cohort_size(clients: int, cohort: int | float) -> int:
    """Clients a round: a number (int), or a fraction of the population (float in (0, 1], at least one client).

    Raises UsageError for 0, negative, NaN, a fraction above 1, a number above the population.
    """
    if isinstance(cohort, int) and 1 <= cohort <= clients:
        return cohort
    if isinstance(cohort, float) and 0 < cohort <= 1:
        return max(1, math.floor(cohort * clients + 0.5))
    raise UsageError(
        f"federation.cohort={cohort}: must be a number of clients from 1 to {clients} (federation.clients), "
        "or a fraction above 0 and up to 1.0 written with a point"
    )


def _row(round: int, rows: int, path: str | Path, repeat: bool) -> int:
    if round < rows or (repeat and rows):
        return round % rows
    raise UsageError(
        f"sampler.path={path}: has {rows} rounds, and round {round + 1} is asked for; lower federation.rounds or set "
        "sampler.repeat=true to start again from the first"
    )


def _changed(path: str | Path) -> int:
    return Path(path).stat().st_mtime_ns if Path(path).exists() else 0


@lru_cache(maxsize=2)
def _schedule(path: str | Path, changed: int) -> tuple[np.ndarray, np.ndarray]:
    """Client ids and where each round's start; `changed` (a time stamp) makes a new version of the file be read."""
    values, sizes = read_rows(path, "sampler.path", "cohorts")
    return values, np.concatenate(([0], np.cumsum(sizes)))


@lru_cache(maxsize=2)
def _availabilities(path: str | Path, changed: int) -> np.ndarray:
    """Probabilities [clients], or 0 and 1 [rounds, clients]; `changed` as in `_schedule`."""
    arrays = read_arrays(path, "sampler.path")
    try:
        table = np.asarray(arrays.get("available", next(iter(arrays.values())) if len(arrays) == 1 else None))
        if table.ndim not in (1, 2) or table.dtype.kind not in "iufb" or not np.all((table >= 0) & (table <= 1)):
            raise ValueError
        if table.ndim == 2 and not np.all((table == 0) | (table == 1)):
            raise ValueError
        return table.astype(np.float32 if table.ndim == 1 else bool)
    except ValueError:
        raise UsageError(
            f"sampler.path={path}: must hold an array `available`: a probability for each client, or 0 and 1 for each "
            "round (rows) and client (columns)"
        ) from None
