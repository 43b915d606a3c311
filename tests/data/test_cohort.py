"""A round's cohort is a pure function of (seed, round)."""

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmuon.data.cohort import availability, cohort_size, fixed, published, uniform, weighted
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


SIZES = np.array([0, 5, 1, 0, 20, 4])


@given(st.integers(0, 2**32), st.integers(0, 1000), st.integers(1, 6))
def test_a_weighted_cohort_is_pure_without_replacement_and_leaves_out_empty_clients(seed, round, cohort):
    ids = weighted(seed, round, 6, cohort, sizes=SIZES)
    assert len(ids) == min(cohort, 4) and np.all(np.diff(ids) > 0)
    assert np.all(SIZES[ids] > 0)
    assert np.array_equal(ids, weighted(seed, round, 6, cohort, sizes=SIZES))
    assert len(weighted(seed, round, 2, 2, sizes=np.zeros(2, int))) == 0


def test_weights_are_the_probabilities_of_successive_draws():
    rounds = 4000
    one = np.bincount([weighted(0, r, 6, 1, sizes=SIZES)[0] for r in range(rounds)], minlength=6) / rounds
    assert np.abs(one - SIZES / 30).max() < 4 * np.sqrt(0.25 / rounds)
    # The pair {4, 1}: first 4 and then 1, or the other way round.
    pair = np.mean([weighted(0, r, 6, 2, sizes=SIZES).tolist() == [1, 4] for r in range(rounds)])
    assert pair == pytest.approx(20 / 30 * 5 / 10 + 5 / 30 * 20 / 25, abs=4 * np.sqrt(0.25 / rounds))


def test_the_published_cohorts():
    assert published(0, 0, 100, 10).tolist() == [83, 53, 70, 45, 44, 39, 22, 80, 10, 0]
    assert published(7, 1, 100, 10).tolist() == [79, 37, 65, 54, 15, 20, 99, 25, 56, 17]
    other = published(0, 3, 30, 5, legacy_seed=1)
    assert len(set(other.tolist())) == 5 and other.max() < 30
    assert not np.array_equal(other, published(0, 3, 30, 5))


@pytest.fixture
def file(tmp_path):
    def write(content):
        path = tmp_path / "rows.json"
        path.write_text(json.dumps(content))
        return path

    return write


def test_a_schedule_is_followed_in_its_order(file, tmp_path):
    path = file([[3, 1], [], [2]])
    assert [fixed(0, r, 4, 2, path=path).tolist() for r in range(3)] == [[3, 1], [], [2]]
    assert fixed(0, 4, 4, 2, path=path, repeat=True).tolist() == []
    np.savez(tmp_path / "rows.npz", cohorts=np.array([[3, 1], [2, -1]]))
    assert fixed(0, 1, 4, 2, path=tmp_path / "rows.npz").tolist() == [2]


@pytest.mark.parametrize(
    ("round", "clients", "cohort", "message"),
    [
        (3, 4, 2, r"has 3 rounds, and round 4 is asked for; .* sampler\.repeat=true"),
        (0, 4, 1, r"row 0 .* names 2 clients, federation\.cohort is 1; set federation\.cohort=2"),
        (0, 3, 2, r"names client 3; federation\.clients=3 are counted from 0"),
        (2, 4, 2, r"row 2 .* names a client twice"),
    ],
)
def test_schedules_that_do_not_fit_are_refused(file, round, clients, cohort, message):
    with pytest.raises(UsageError, match=message):
        fixed(0, round, clients, cohort, path=file([[3, 1], [], [2, 2]]))


def test_a_schedule_must_be_named_and_there(tmp_path):
    with pytest.raises(UsageError, match=r"^sampler\.path=null"):
        fixed(0, 0, 4, 2)
    with pytest.raises(UsageError, match=r"^sampler\.path=.*absent\.json: there is no such file"):
        fixed(0, 0, 4, 2, path=tmp_path / "absent.json")


@given(st.integers(0, 2**32), st.integers(0, 1000), st.floats(0, 1))
def test_available_clients_are_drawn_without_replacement_or_none(seed, round, probability):
    ids = availability(seed, round, 12, 5, probability=probability)
    assert len(ids) <= 5 and np.all(np.diff(ids) > 0)
    assert np.array_equal(ids, availability(seed, round, 12, 5, probability=probability))


def test_availability_is_a_probability_or_a_trace(file):
    assert len(availability(0, 0, 9, 4, probability=0)) == 0
    assert np.array_equal(availability(0, 0, 9, 4, probability=1), uniform(0, 0, 9, 4))
    own = file([0.1, 1, 0])
    times = np.bincount(np.concatenate([availability(0, r, 3, 3, path=own) for r in range(2000)]), minlength=3)
    assert times[1:].tolist() == [2000, 0] and times[0] == pytest.approx(200, abs=4 * np.sqrt(180))


def test_a_trace_says_who_is_available(file):
    trace = file([[1, 0, 1], [0, 0, 0]])
    assert [availability(0, r, 3, 3, path=trace).tolist() for r in range(2)] == [[0, 2], []]
    assert availability(0, 2, 3, 1, path=trace, repeat=True).tolist() in ([0], [2])
    with pytest.raises(UsageError, match=r"has 2 rounds, and round 3 is asked for"):
        availability(0, 2, 3, 3, path=trace)
    with pytest.raises(UsageError, match=r"has 3 clients a row, federation\.clients is 4"):
        availability(0, 0, 4, 3, path=trace)


@pytest.mark.parametrize(
    "content", [[[0, 2]], [[0.05, 0.9], [0, 1]], [1.5], ["a"], [[[1]]], {"x": [1], "y": [0]}, [[1], [1, 0]]]
)
def test_a_file_without_availabilities_is_refused(file, content):
    with pytest.raises(UsageError, match=r"must hold an array `available`"):
        availability(0, 0, 2, 1, path=file(content))
