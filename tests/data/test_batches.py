"""Local batches are shuffled epochs without replacement that run on across epochs."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmuon.data.batching import batches, steps_of
from fedmuon.errors import UsageError

counts = st.integers(1, 60)
sizes = st.integers(1, 70)


@given(counts, sizes, st.integers(1, 40))
def test_steps_are_exact_and_every_epoch_is_a_permutation(n, batch_size, steps):
    made = batches(0, 1, 2, samples=n, batch_size=batch_size, steps=steps)
    assert len(made) == steps == steps_of(n, batch_size, steps=steps)
    an_epoch = math.ceil(n / batch_size)
    full, last = divmod(n, batch_size)
    lengths = [batch_size] * full + [last] * (last > 0)
    assert [len(batch) for batch in made] == (lengths * steps)[:steps]
    for start in range(0, steps, an_epoch):
        epoch = np.concatenate(made[start : start + an_epoch])
        assert len(np.unique(epoch)) == len(epoch)
        if start + an_epoch <= steps:
            assert np.array_equal(np.sort(epoch), np.arange(n))


@given(counts, sizes, st.integers(1, 40))
def test_drop_last_leaves_out_the_short_batch_but_never_the_client(n, batch_size, steps):
    made = batches(0, 0, 0, samples=n, batch_size=batch_size, steps=steps, drop_last=True)
    assert [len(batch) for batch in made] == [min(n, batch_size)] * steps
    an_epoch = max(1, n // batch_size)
    for start in range(0, steps, an_epoch):
        epoch = np.concatenate(made[start : start + an_epoch])
        assert len(np.unique(epoch)) == len(epoch)


@given(counts, sizes, st.floats(0.01, 6), st.booleans())
def test_epochs_are_rounded_to_whole_batches(n, batch_size, epochs, drop_last):
    an_epoch = max(1, n // batch_size) if drop_last else math.ceil(n / batch_size)
    made = batches(0, 0, 0, samples=n, batch_size=batch_size, epochs=epochs, drop_last=drop_last)
    assert len(made) == steps_of(n, batch_size, epochs=epochs, drop_last=drop_last) >= 1
    assert abs(len(made) - epochs * an_epoch) <= 0.5 or len(made) == 1


@given(counts, sizes, st.floats(0.01, 6), st.booleans(), st.data())
def test_who_stops_early_has_the_first_batches(n, batch_size, epochs, drop_last, data):
    whole = batches(0, 0, 0, samples=n, batch_size=batch_size, epochs=epochs, drop_last=drop_last)
    done = data.draw(st.integers(1, len(whole)))
    some = batches(0, 0, 0, samples=n, batch_size=batch_size, steps=done, drop_last=drop_last)
    assert [batch.tolist() for batch in some] == [batch.tolist() for batch in whole[:done]]


@pytest.mark.parametrize(
    ("n", "epochs", "drop_last", "steps"),
    [
        (500, 1, False, 10),
        (510, 1, False, 11),
        (510, 1, True, 10),
        (500, 0.25, False, 3),
        (500, 2.5, False, 25),
        (500, 0.01, False, 1),
        (20, 3, True, 3),
        (0, 1, False, 0),
    ],
)
def test_known_numbers_of_steps(n, epochs, drop_last, steps):
    assert steps_of(n, 50, epochs=epochs, drop_last=drop_last) == steps


def test_the_next_epoch_is_shuffled_anew():
    made = batches(0, 0, 0, samples=40, batch_size=40, steps=2)
    assert not np.array_equal(made[0], made[1])


def test_asking_for_fewer_steps_gives_the_first_of_the_same_batches():
    long = batches(3, 2, 1, samples=13, batch_size=5, steps=9)
    short = batches(3, 2, 1, samples=13, batch_size=5, steps=4)
    assert [batch.tolist() for batch in short] == [batch.tolist() for batch in long[:4]]


def test_a_pure_function_in_which_seeds_rounds_and_clients_differ():
    def flat(seed, round, client):
        np.random.seed(0)  # the global generator must not matter
        return np.concatenate(batches(seed, round, client, samples=64, batch_size=16, epochs=1)).tolist()

    first = flat(0, 0, 0)
    np.random.seed(1)
    assert flat(0, 0, 0) == first
    others = [flat(1, 0, 0), flat(0, 1, 0), flat(0, 0, 1)]
    assert all(other != first for other in others) and others[0] != others[1] != others[2]


def test_batches_hold_the_clients_own_indices_in_the_same_order():
    own = np.array([100, 7, 55, 31, 8], dtype=np.int64)
    positions = batches(0, 0, 0, samples=5, batch_size=2, epochs=2)
    made = batches(0, 0, 0, samples=own, batch_size=2, epochs=2)
    assert [batch.tolist() for batch in made] == [own[position].tolist() for position in positions]
    assert own.tolist() == [100, 7, 55, 31, 8] and made[0].dtype == np.int64


def test_a_client_without_samples_has_no_batches():
    assert batches(0, 0, 0, samples=np.array([], dtype=np.int64), batch_size=5, steps=3) == []
    assert batches(0, 0, 0, samples=0, batch_size=5, epochs=1) == []


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"batch_size": 0, "steps": 1}, "local.batch_size=0"),
        ({"batch_size": 5, "steps": 0}, "local.steps=0"),
        ({"batch_size": 5, "epochs": 0.0}, "local.epochs=0.0"),
        ({"batch_size": 5, "epochs": float("nan")}, "local.epochs=nan"),
        ({"batch_size": 5, "epochs": float("inf")}, "local.epochs=inf"),
        ({"batch_size": 5}, "local.steps=None, local.epochs=None"),
        ({"batch_size": 5, "steps": 1, "epochs": 1.0}, "local.steps=1, local.epochs=1.0"),
    ],
)
def test_wrong_settings_are_refused(arguments, key):
    with pytest.raises(UsageError, match=f"^{key.replace('.', '[.]')}: "):
        batches(0, 0, 0, samples=10, **arguments)
