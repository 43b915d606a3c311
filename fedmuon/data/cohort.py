"""Which clients take part in a round."""

from __future__ import annotations

import math

import numpy as np

from fedmuon.errors import UsageError
from fedmuon.randomness import stream


def uniform(seed: int, round: int, clients: int, cohort: int) -> np.ndarray:
    """The ids of `cohort` of `clients` clients, drawn uniformly without replacement; int64 [cohort], ascending.

    A pure function of (seed, round). Memory grows with the cohort, not with the population (Floyd's method).
    """
    return np.sort(stream(seed, "cohort", round).choice(clients, size=cohort, replace=False, shuffle=False))


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
