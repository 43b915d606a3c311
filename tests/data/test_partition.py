"""Partitions are disjoint, complete, equal in size and reproducible, however skewed."""

import time
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmuon.data.partition import Partition, load_validation, validation_split
from fedmuon.data.partitions import dirichlet, iid
from fedmuon.data.partitions.label_skew import _draw_classes
from fedmuon.data.rows import read_rows
from fedmuon.errors import UsageError
from fedmuon.report.partitions import partitions

labels_lists = st.lists(st.integers(0, 6), min_size=1, max_size=120).map(np.array)
seeds = st.integers(0, 2**32)


def assert_splits(partition: Partition, among: np.ndarray, clients: int) -> None:
    assert len(partition) == clients == len(partition.sizes)
    assert np.array_equal(np.sort(partition.indices), np.sort(among))
    share, rest = divmod(len(among), clients)
    assert partition.sizes.tolist() == [share + 1] * rest + [share] * (clients - rest)
    assert partition.indices.dtype == partition.offsets.dtype == np.int64


@settings(deadline=None, max_examples=60)
@given(labels_lists, st.integers(1, 150), st.floats(1e-6, 1e6), seeds, st.sampled_from(["classes", "flat"]))
def test_dirichlet_is_disjoint_complete_equal_and_pure(labels, clients, concentration, seed, prior):
    partition = dirichlet(labels, clients, concentration, seed, min_size=0, prior=prior)
    assert_splits(partition, np.arange(len(labels)), clients)
    again = dirichlet(labels, clients, concentration, seed, min_size=0, prior=prior)
    assert np.array_equal(partition.indices, again.indices)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=6).map(np.array), st.floats(1e-6, 1e6), st.data())
def test_no_class_is_drawn_beyond_its_pool(pools, concentration, data):
    cuts = data.draw(st.lists(st.integers(0, int(pools.sum())), max_size=8).map(sorted))
    sizes = np.diff([0, *cuts, pools.sum()])
    drawn = _draw_classes(sizes, pools, np.full(len(pools), concentration), np.random.default_rng(0))
    assert np.array_equal(np.bincount(drawn, minlength=len(pools)), pools)


@settings(deadline=None, max_examples=40)
@given(labels_lists, st.integers(1, 150), seeds)
def test_iid_is_disjoint_complete_equal_and_pure(labels, clients, seed):
    partition = iid(labels, clients, seed, min_size=0)
    assert_splits(partition, np.arange(len(labels)), clients)
    assert np.array_equal(partition.indices, iid(len(labels), clients, seed, min_size=0).indices)


@settings(deadline=None, max_examples=40)
@given(labels_lists, st.floats(0, 0.99), seeds)
def test_validation_split_is_stratified_and_keeps_every_class_in_training(labels, fraction, seed):
    train, validation = validation_split(labels, fraction, seed)
    assert np.array_equal(np.sort(np.concatenate((train, validation))), np.arange(len(labels)))
    assert np.all(np.diff(train) > 0) and np.all(np.diff(validation) > 0)
    assert set(labels[train]) == set(labels)
    held_out = np.bincount(labels[validation], minlength=7)
    assert np.all(np.abs(held_out - fraction * np.bincount(labels, minlength=7)) <= 1)
    if fraction == 0:
        assert len(validation) == 0


def test_validation_split_holds_out_the_asked_share_and_follows_the_seed():
    labels = np.repeat(np.arange(10), 15)
    _, validation = validation_split(labels, 0.1, seed=0)
    assert len(validation) == 15  # 1.5 a class: five classes give two, five give one
    assert sorted(np.bincount(labels[validation])) == [1] * 5 + [2] * 5
    assert np.array_equal(validation, validation_split(labels, 0.1, seed=0)[1])
    assert not np.array_equal(validation, validation_split(labels, 0.1, seed=1)[1])


@pytest.mark.parametrize("split", [lambda y, seed: dirichlet(y, 5, 0.5, seed), lambda y, seed: iid(y, 5, seed)])
def test_seeds_differ(split):
    labels = np.repeat(np.arange(4), 25)
    assert not np.array_equal(split(labels, 0).indices, split(labels, 1).indices)


def test_only_the_given_indices_are_distributed():
    labels = np.repeat(np.arange(5), 40)
    train, validation = validation_split(labels, 0.2, seed=3)
    for partition in (dirichlet(labels, 7, 0.3, 3, among=train), iid(labels, 7, 3, among=train)):
        assert_splits(partition, train, 7)
        assert not np.intersect1d(partition.indices, validation).size


def class_shares(partition: Partition, labels: np.ndarray) -> np.ndarray:
    return np.array([np.bincount(labels[row], minlength=labels.max() + 1) / len(row) for row in partition])


def test_extremely_small_concentration_gives_single_classes_until_the_pools_run_out():
    labels = np.repeat(np.arange(10), 100)
    shares = class_shares(dirichlet(labels, 100, 1e-6, seed=0), labels)
    # A client meets a second class only where a pool runs out in the middle of its share: at most once a class.
    assert (shares.max(1) == 1).sum() >= 90


def test_extremely_large_concentration_gives_the_class_proportions():
    labels = np.repeat(np.arange(3), [6000, 3000, 1000])
    shares = class_shares(dirichlet(labels, 10, 1e6, seed=0, prior="classes"), labels)
    assert np.abs(shares - [0.6, 0.3, 0.1]).max() < 0.06  # four standard deviations of 1,000 draws


@pytest.mark.parametrize(("prior", "alpha"), [("classes", 0.05), ("flat", 0.5)])
def test_mixtures_have_the_second_moment_of_the_dirichlet(prior, alpha):
    """E sum q^2 = (alpha + 1) / (C alpha + 1) for Dir(alpha, ..., alpha) over C classes, plus 1/n' from sampling."""
    classes, share = 10, 50
    labels = np.repeat(np.arange(classes), 15_000)
    partition = dirichlet(labels, len(labels) // share, 0.5, seed=1, prior=prior)
    first = class_shares(partition, labels)[:1000]  # before any pool runs out
    moment = (alpha + 1) / (classes * alpha + 1)
    assert (first**2).sum(1).mean() == pytest.approx(moment + (1 - moment) / share, abs=0.03)


def test_a_single_class_and_more_clients_than_classes():
    assert_splits(dirichlet(np.zeros(50, int), 20, 0.1, seed=0), np.arange(50), 20)
    assert_splits(dirichlet(np.array([0, 0, 1]), 3, 1e-300, seed=0), np.arange(3), 3)


def test_ten_thousand_skewed_clients_take_bounded_time():
    labels = np.repeat(np.arange(100), 500)
    start = time.process_time()
    partition = dirichlet(labels, 10_000, 0.05, seed=0)
    assert time.process_time() - start < 5
    assert_splits(partition, np.arange(50_000), 10_000)


@pytest.mark.parametrize("concentration", [0, -1, float("nan"), float("inf")])
def test_a_concentration_outside_its_range_is_refused(concentration):
    with pytest.raises(UsageError, match=r"^partition\.concentration="):
        dirichlet(np.zeros(10, int), 2, concentration, seed=0)


@pytest.mark.parametrize("split", [lambda *a, **k: dirichlet(a[0], a[1], 0.5, 0, **k), lambda *a, **k: iid(*a, 0, **k)])
def test_impossible_sizes_are_refused_with_what_is_allowed(split):
    labels = np.zeros(10, int)
    with pytest.raises(UsageError, match=r"^federation\.clients=0: must be at least 1"):
        split(labels, 0)
    with pytest.raises(UsageError, match=r"partition\.min_size=4: .* allowed is 0 to 3; .* at most 2 clients"):
        split(labels, 3, min_size=4)
    with pytest.raises(UsageError, match=r"partition\.min_size=1: .* federation\.clients=11 .* at most 10 clients"):
        split(labels, 11)
    with pytest.raises(UsageError, match=r"^partition\.min_size=-1"):
        split(labels, 3, min_size=-1)
    assert split(labels, 11, min_size=0).sizes.tolist() == [1] * 10 + [0]


def test_other_wrong_options_are_refused():
    with pytest.raises(UsageError, match=r"^partition\.prior=even: must be one of flat, classes"):
        dirichlet(np.zeros(10, int), 2, 0.5, seed=0, prior="even")
    for fraction in (-0.1, 1.0, float("nan")):
        with pytest.raises(UsageError, match=r"^data\.validation="):
            validation_split(np.zeros(10, int), fraction, seed=0)


def test_rows_are_views_and_iteration_ends():
    partition = Partition.from_lists([[5, 3], [], np.array([8])])
    assert [row.tolist() for row in partition] == [[5, 3], [], [8]]
    assert partition[-1].tolist() == [8] and partition[0].base is not None
    with pytest.raises(IndexError):
        partition[3]
    with pytest.raises(UsageError, match="at least one client"):
        Partition.from_lists([])
    with pytest.raises(ValueError, match="offsets"):
        Partition(np.arange(3), np.array([0, 2]))


def test_what_is_saved_is_loaded_and_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "partition.npz"
    partition = dirichlet(np.repeat(np.arange(3), 10), 4, 0.5, seed=0)
    partition.save(path, validation=np.array([30, 31]))
    loaded = Partition.load(path)
    assert np.array_equal(loaded.indices, partition.indices) and np.array_equal(loaded.offsets, partition.offsets)
    assert load_validation(path).tolist() == [30, 31]
    partition.save(path, labels=np.repeat(np.arange(3), 10), classes=("a", "b", "c"))
    with np.load(path) as file:
        assert file["labels"].tolist() == (partition.indices // 10).tolist()
        assert file["classes"].tolist() == ["a", "b", "c"]
    assert np.array_equal(Partition.load(path).indices, partition.indices)

    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="disk full"):
        iid(10, 2, seed=0).save(path)
    assert np.array_equal(Partition.load(path).indices, partition.indices)
    assert [file.name for file in tmp_path.iterdir()] == ["partition.npz"]


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 half an archive"])
def test_a_damaged_partition_file_is_named(tmp_path, content):
    path = tmp_path / "partition.npz"
    with pytest.raises(UsageError, match="no such partition file"):
        Partition.load(path)
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"partition\.npz: is not a partition"):
        Partition.load(path)


def test_a_flipped_byte_anywhere_ends_in_one_line(tmp_path):
    path = tmp_path / "partition.npz"
    iid(10, 2, seed=0).save(path)
    whole, told = path.read_bytes(), 0
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        with suppress(UsageError):  # any other error ends the test
            Partition.load(path)
        with suppress(UsageError):
            read_rows(path, "partition.path", "indices")
        told += len(partitions([SimpleNamespace(path=tmp_path, config={}, seed=0)])[1])
    assert told > len(whole) // 4
