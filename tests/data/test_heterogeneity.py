"""The figures of small partitions that one can count by hand, and of random ones by a plain computation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmuon.data.heterogeneity import client_figures, gini, heterogeneity
from fedmuon.data.partition import Partition
from fedmuon.data.partitions import iid


def test_figures_of_a_small_partition():
    labels = np.array([0, 0, 1, 1, 2, 2, 2, 2])
    partition = Partition.from_lists([[0, 1, 2, 0], [], [4, 5]])
    each = client_figures(partition, labels)
    assert each.classes.tolist() == [2, 0, 1] and each.dominant.tolist() == [0, -1, 2]
    assert each.largest[[0, 2]].tolist() == [0.75, 1] and np.isnan(each.largest[1])
    assert each.distance[[0, 2]].tolist() == [0.5, 0.5] and np.isnan(each.distance[1])  # to (1/4, 1/4, 1/2)
    whole = heterogeneity(partition, labels)
    assert (whole.clients, whole.empty, whole.entries, whole.different) == (3, 1, 6, 5)
    assert (whole.repeated, whole.missing) == (1, 3)
    assert (whole.size_min, whole.size_median, whole.size_max) == (0, 2, 4)
    assert (whole.mean_classes, whole.mean_largest_share, whole.mean_distance) == (1.5, 0.875, 0.5)
    assert whole.size_gini == pytest.approx(4 / 9)
    assert heterogeneity(partition, labels, among=np.array([0, 1, 2, 4, 5])).missing == 0


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 29), max_size=12), min_size=1, max_size=8), st.integers(0, 99))
def test_figures_agree_with_a_table_of_counts(lists, seed):
    labels = np.random.default_rng(seed).integers(0, 4, 30) * 7  # labels need not be 0, 1, 2, ...
    names = np.unique(labels)
    each = client_figures(Partition.from_lists(lists), labels)
    overall = np.array([np.mean(labels == name) for name in names])
    for i, row in enumerate(lists):
        counts = np.array([np.sum(labels[row] == name) for name in names]) if row else np.zeros(len(names))
        assert each.classes[i] == np.count_nonzero(counts)
        if row:
            assert each.largest[i] == pytest.approx(counts.max() / len(row))
            assert each.dominant[i] == names[counts.argmax()]
            assert each.distance[i] == pytest.approx(np.abs(counts / len(row) - overall).sum() / 2)


def test_gini():
    assert gini(np.array([5, 5, 5])) == pytest.approx(0)
    assert gini(np.array([0, 0, 0, 8])) == pytest.approx(3 / 4)
    assert gini(np.array([1, 3])) == pytest.approx(1 / 4)
    assert gini(np.zeros(3)) == 0


def test_a_million_clients_have_figures():
    whole = heterogeneity(iid(100, 1_000_000, 0, min_size=0), np.arange(100) % 10)
    assert (whole.empty, whole.mean_classes) == (999_900, 1)
    assert whole.mean_distance == pytest.approx(0.9)
