"""A round's cohort is a pure, uniform function of (seed, round)."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmuon.data.cohort import cohort_size, uniform
from fedmuon.errors import UsageError


@given(st.integers(0, 2**32), st.integers(0, 10_000), st.integers(1, 500), st.data())
def test_a_cohort_is_a_pure_sample_without_replacement(seed, round, clients, data):
    cohort = data.draw(st.integers(1, clients))
    ids = uniform(seed, round, clients, cohort)
    assert ids.dtype == np.int64 and len(ids) == cohort
    assert np.all(np.diff(ids) > 0) and ids[0] >= 0 and ids[-1] < clients
    assert np.array_equal(ids, uniform(seed, round, clients, cohort))


def test_rounds_and_seeds_differ():
    first = uniform(0, 0, 1000, 10)
    assert not np.array_equal(first, uniform(0, 1, 1000, 10))
    assert not np.array_equal(first, uniform(1, 0, 1000, 10))


def test_every_client_is_as_likely_as_any_other():
    rounds = 4000
    times = np.bincount(np.concatenate([uniform(0, round, 20, 5) for round in range(rounds)]), minlength=20)
    deviation = np.sqrt(rounds * 0.25 * 0.75)
    assert np.abs(times - rounds * 0.25).max() < 4 * deviation


def test_memory_does_not_grow_with_the_population():
    uniform(0, 0, 1_000_000, 100)
    tracemalloc.start()
    ids = uniform(0, 1, 1_000_000, 100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(ids) == 100 and peak < 100_000  # a list of the population would take 8 MB


@pytest.mark.parametrize(
    ("clients", "cohort", "size"),
    [(100, 10, 10), (100, 100, 100), (100, 1, 1), (100, 1.0, 100), (100, 0.1, 10), (100, 0.001, 1), (10, 0.25, 3)],
)
def test_numbers_and_fractions(clients, cohort, size):
    assert cohort_size(clients, cohort) == size


@pytest.mark.parametrize("cohort", [0, -1, 101, 0.0, -0.5, 1.5, 10.0, float("nan"), float("inf")])
def test_other_sizes_are_refused(cohort):
    with pytest.raises(UsageError, match=r"^federation\.cohort=.* from 1 to 100 .* fraction"):
        cohort_size(100, cohort)
