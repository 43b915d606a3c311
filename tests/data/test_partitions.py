"""Every way to divide: disjoint, complete, at least min_size for each client, a pure function of the seed."""

import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmuon.data.partition import Partition
from fedmuon.data.partitions import (
    dirichlet,
    dirichlet_classes,
    feature_shift,
    iid,
    label_disjoint,
    natural,
    quantity,
    shards,
)
from fedmuon.data.partitions.sizes import shared_out, with_minimum
from fedmuon.errors import UsageError


def sharded(most: int):
    """shards with `most` classes a client, or as many as there are."""

    def split(labels, clients, seed, *, among=None, **keys):
        classes = len(set(labels[slice(None) if among is None else among].tolist()))
        return shards(labels, clients, seed, classes_per_client=min(most, classes), among=among, **keys)

    return split


SPLITS = {
    "iid": iid,
    "dirichlet, tiny": lambda y, n, seed, **k: dirichlet(y, n, 1e-9, seed, prior="flat", **k),
    "dirichlet, huge": lambda y, n, seed, **k: dirichlet(y, n, 1e9, seed, **k),
    "dirichlet_classes": dirichlet_classes,
    "dirichlet_classes, tiny": lambda *a, **k: dirichlet_classes(*a, concentration=1e-300, **k),
    "dirichlet_classes, huge": lambda *a, **k: dirichlet_classes(*a, concentration=1e9, **k),
    "dirichlet_classes, uncapped": lambda *a, **k: dirichlet_classes(*a, concentration=0.05, capped=False, **k),
    "shards": sharded(2),
    "shards, five": sharded(5),
    "label_disjoint, one group": lambda *a, **k: label_disjoint(*a, label_groups=1, **k),
    "quantity": quantity,
    "quantity, extreme": lambda *a, **k: quantity(*a, sigma=300.0, **k),
    "feature_shift": feature_shift,
}
label_lists = st.lists(st.integers(0, 6), min_size=1, max_size=80).map(np.array)


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(sorted(SPLITS)), label_lists, st.integers(0, 2**32), st.data())
def test_disjoint_complete_large_enough_and_pure(name, labels, seed, data):
    split = SPLITS[name]
    clients = data.draw(st.one_of(st.integers(1, 120), st.just(len(labels))))  # more than classes, than samples, equal
    among = np.flatnonzero(np.arange(len(labels)) % data.draw(st.integers(2, 100)) != 1)
    min_size = data.draw(st.integers(0, len(among) // clients))
    partition = split(labels, clients, seed, min_size=min_size, among=among)
    assert len(partition) == clients
    assert np.array_equal(np.sort(partition.indices), among)
    assert partition.sizes.min() >= min_size
    assert partition.indices.dtype == partition.offsets.dtype == np.int64
    assert all(np.all(np.diff(row) > 0) for row in partition)
    assert np.array_equal(split(labels, clients, seed, min_size=min_size, among=among).indices, partition.indices)


@pytest.mark.parametrize("name", sorted(SPLITS))
def test_seeds_differ_and_impossible_sizes_are_refused(name):
    labels = np.repeat(np.arange(4), 25)
    assert not np.array_equal(SPLITS[name](labels, 7, 0).indices, SPLITS[name](labels, 7, 1).indices)
    with pytest.raises(UsageError, match=r"^partition\.min_size=15: .* allowed is 0 to 14; .* at most 6 clients"):
        SPLITS[name](labels, 7, 0, min_size=15)
    with pytest.raises(UsageError, match=r"^federation\.clients=0"):
        SPLITS[name](labels, 0, 0)


@pytest.mark.parametrize("split", [lambda n: dirichlet(n, 2, 0.1, 0), lambda n: shards(n, 2, 0)])
def test_what_follows_labels_needs_them(split):
    with pytest.raises(UsageError, match="the data set has none; use partition=iid"):
        split(10)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30).map(np.array), st.data())
def test_the_largest_give_to_the_smallest_and_nobody_else_changes(sizes, data):
    minimum = data.draw(st.integers(0, int(sizes.sum()) // len(sizes)))
    raised = with_minimum(sizes, minimum)
    assert raised.sum() == sizes.sum() and raised.min() >= minimum
    gave, got = raised < sizes, raised > sizes
    assert np.all(raised[got] == minimum)
    if gave.any():
        assert raised[gave].min() >= raised[~gave].max() - 1 or raised[gave].min() >= sizes[~gave].max() - 1


def test_shares_become_whole_numbers_by_largest_remainder():
    assert shared_out(10, np.array([0.26, 0.55, 0.19])).tolist() == [3, 5, 2]
    assert shared_out(0, np.array([0.5, 0.5])).tolist() == [0, 0]


def classes_of(partition: Partition, labels: np.ndarray) -> list[set[int]]:
    return [set(labels[row].tolist()) for row in partition]


def test_shards_give_two_classes_a_client():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 600))
    partition = shards(labels, 100, 0)  # 200 shards of 30, 20 of each class
    assert set(partition.sizes) == {60}
    held = classes_of(partition, labels)
    assert max(map(len, held)) == 2 and sum(len(one) == 2 for one in held) > 75  # 1 - 19/199 of 100 are expected
    assert {len(one) for one in classes_of(shards(labels, 100, 0, classes_per_client=1), labels)} == {1}


@pytest.mark.parametrize("wrong", [0, -1, 4, 10])
def test_nobody_can_have_more_classes_than_there_are(wrong):
    labels, among = np.repeat([2, 5, 7, 9], 10), np.arange(30)  # three classes are left to distribute
    assert shards(labels, 4, 0, classes_per_client=3, among=among).sizes.sum() == 30
    with pytest.raises(UsageError, match=rf"^partition\.classes_per_client={wrong}: must be from 1 to 3, .*=iid$"):
        shards(labels, 4, 0, classes_per_client=wrong, among=among)


def test_uneven_shards_pair_every_class_with_every_other():
    labels = np.repeat(np.arange(2), 75)  # 100 shards: 50 of two samples, 50 of one
    held = classes_of(shards(labels, 50, 0), labels)
    assert 10 < sum(len(one) == 2 for one in held) < 40  # all 50 if the larger shards came from one end


@settings(deadline=None, max_examples=60)
@given(label_lists, st.integers(0, 2**32), st.data())
def test_groups_of_clients_share_no_class(labels, seed, data):
    groups = data.draw(st.integers(1, len(set(labels.tolist()))))
    clients = data.draw(st.integers(groups, 40))
    partition = label_disjoint(labels, clients, seed, label_groups=groups, min_size=0)
    assert np.array_equal(np.sort(partition.indices), np.arange(len(labels)))
    linked = np.eye(7, dtype=bool)  # classes that some client holds together, and what follows from it
    for one in classes_of(partition, labels):
        for k in one:
            linked[k, list(one)] = True
    for _ in range(7):
        linked = linked @ linked
    present = sorted(set(labels.tolist()))
    assert len({tuple(row) for row in linked[present]}) >= groups


def test_disjoint_groups_are_as_equal_as_they_can_be():
    labels = np.repeat(np.arange(10), 50)
    partition = label_disjoint(labels, 20, 0, label_groups=5, min_size=25)
    held = classes_of(partition, labels)
    assert set(partition.sizes) == {25} and len({frozenset(one) for one in held}) == 5
    assert sorted(np.bincount(np.concatenate([list(one) for one in held]))) == [4] * 10
    rare = np.repeat(np.arange(2), [97, 3])
    assert sorted(label_disjoint(rare, 20, 0, min_size=3).sizes)[0] == 3  # one client has the three of the rare class
    with pytest.raises(UsageError, match=r"^partition\.min_size=5: .* gets 3; allowed is 0 to 3"):
        label_disjoint(rare, 20, 0, min_size=5)
    with pytest.raises(UsageError, match=r"^partition\.label_groups=3: must be from 1 to 2"):
        label_disjoint(rare, 20, 0, label_groups=3)


def test_log_normal_sizes_have_the_asked_spread():
    partition = quantity(1_000_000, 2000, 0, sigma=0.7)
    assert np.log(partition.sizes).std() == pytest.approx(0.7, abs=0.05)
    assert set(quantity(100, 10, 0, sigma=0).sizes) == {10}
    with pytest.raises(UsageError, match=r"^partition\.sigma=-1"):
        quantity(10, 2, 0, sigma=-1)


def test_clients_of_a_class_follow_the_dirichlet():
    """Uncapped, the share of a class that one client gets has the variance (1 - 1/N) / N / (N c + 1) of Dir(c)."""
    labels, clients, concentration = np.repeat(np.arange(400), 200), 5, 0.5
    partition = dirichlet_classes(labels, clients, 0, concentration=concentration, capped=False, min_size=0)
    share = np.array([np.bincount(labels[row], minlength=400) for row in partition]) / 200
    expected = (1 - 1 / clients) / clients / (clients * concentration + 1)
    assert share.var() == pytest.approx(expected, rel=0.1)
    capped = dirichlet_classes(labels, clients, 0, concentration=concentration)
    assert capped.sizes.max() <= len(labels) / clients + 200  # nobody goes on after its fair share
    assert np.ptp(partition.sizes) > np.ptp(capped.sizes) > 0


def test_a_minimum_is_reached_by_moving_few_samples():
    labels = np.repeat(np.arange(10), 100)
    free = dirichlet_classes(labels, 100, 0, concentration=0.1, min_size=0)
    held = dirichlet_classes(labels, 100, 0, concentration=0.1, min_size=8)
    lacking = np.maximum(8 - free.sizes, 0).sum()
    assert lacking > 0 and held.sizes.min() == 8
    before, after = np.empty(1000, int), np.empty(1000, int)
    before[free.indices], after[held.indices] = free.owners, held.owners
    assert np.sum(before != after) == lacking


def test_views_of_the_features_travel_with_the_partition(tmp_path):
    partition = feature_shift(100, 5, 0, noise=0.5, rotation=40)
    assert np.array_equal(partition.indices, iid(100, 5, 0).indices)
    assert np.allclose(partition.features, [[0.1, -40], [0.2, -20], [0.3, 0], [0.4, 20], [0.5, 40]])
    partition.save(tmp_path / "partition.npz")
    assert np.array_equal(Partition.load(tmp_path / "partition.npz").features, partition.features)
    assert iid(100, 5, 0).features is None
    for wrong in ({"noise": -1}, {"rotation": 181}):
        with pytest.raises(UsageError, match=r"^partition\.(noise|rotation)="):
            feature_shift(100, 5, 0, **wrong)


def test_natural_groups_stay_whole():
    writers = np.array(["b", "a", "c", "a", "b", "b", "d"])
    partition = natural(7, 4, 0, groups=writers)
    assert [row.tolist() for row in partition] == [[1, 3], [0, 4, 5], [2], [6]]
    assert [row.tolist() for row in natural(7, 4, 0, groups=writers, among=np.array([0, 1, 2, 6]))] == [
        [1],
        [0],
        [2],
        [6],
    ]
    merged = natural(7, 2, 0, groups=writers, merge=True)
    assert sorted(merged.sizes) == [3, 4]
    assert all(len(set(merged.owners[np.isin(merged.indices, np.flatnonzero(writers == w))])) == 1 for w in "abcd")


def test_natural_groups_that_do_not_fit_are_refused():
    groups = np.array([0, 0, 1, 2])
    with pytest.raises(UsageError, match=r"DataSet\.groups"):
        natural(4, 3, 0)
    with pytest.raises(UsageError, match=r"^federation\.clients=2: .* 3 groups; set federation\.clients=3, or .*merge"):
        natural(4, 2, 0, groups=groups)
    with pytest.raises(UsageError, match=r"^federation\.clients=4: .* set federation\.clients=3$"):
        natural(4, 4, 0, groups=groups, merge=True)
    with pytest.raises(UsageError, match=r"^partition\.min_size=1: 1 of 3 clients .* smallest 0"):
        natural(4, 3, 0, groups=groups, among=np.array([0, 1, 2]))


@pytest.mark.parametrize("name", ["iid", "dirichlet_classes", "shards", "quantity", "label_disjoint, one group"])
def test_a_million_clients_over_few_samples_fit(name):
    labels = np.repeat(np.arange(5), 400)
    start = time.process_time()
    partition = SPLITS[name](labels, 1_000_000, 0, min_size=0)
    assert time.process_time() - start < 5
    assert len(partition) == 1_000_000
    assert np.array_equal(np.sort(partition.indices), np.arange(2000))


@pytest.mark.parametrize("name", ["dirichlet_classes, uncapped", "shards", "quantity"])
def test_ten_thousand_skewed_clients_take_bounded_time_and_memory(name):
    labels = np.repeat(np.arange(100), 500)
    tracemalloc.start()
    start = time.process_time()
    partition = SPLITS[name](labels, 10_000, 0, min_size=3)
    seconds, peak = time.process_time() - start, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < 5 and peak < 500e6
    assert partition.sizes.min() >= 3 and partition.sizes.sum() == 50_000
