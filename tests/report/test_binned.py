"""The lines of a partition's picture."""

import numpy as np
import pytest

from fedmuon.data.heterogeneity import client_figures
from fedmuon.data.partition import Partition
from fedmuon.report.binned import binned

LABELS = np.array([0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 0])
CLIENTS = Partition.from_lists([[], [0, 1, 2], [3], [4, 5], [6, 7, 8, 9], [10]])


@pytest.mark.parametrize("most", [6, 100])
def test_few_clients_have_a_line_each(most):
    shares, sizes = binned(client_figures(CLIENTS, LABELS), LABELS[CLIENTS.indices], 2, most)
    assert shares.round(2).tolist() == [[0, 0], [0.67, 0.33], [0, 1], [1, 0], [0.25, 0.75], [1, 0]]
    assert sizes.tolist() == [0, 3, 1, 2, 4, 1]


def test_many_are_put_together_by_class_share_and_size_with_empty_ones_last():
    shares, sizes = binned(client_figures(CLIENTS, LABELS), LABELS[CLIENTS.indices], 2, 3)  # 3 and 5, 1 and 2, 4 and 0
    assert shares.tolist() == [[1, 0], [0.5, 0.5], [0.25, 0.75]] and sizes.tolist() == [1.5, 2, 2]
