"""How samples are ordered and dealt out."""

import numpy as np
import pytest

from fedmuon.data.dealing import packed, ranks, shuffled_by


def test_ranks_begin_again_in_every_run():
    assert ranks(np.array([2, 0, 3])).tolist() == [0, 1, 0, 1, 2] and ranks(np.array([], int)).tolist() == []


def test_equal_keys_are_shuffled_and_others_in_order():
    keys = np.repeat([3, 1, 2], [50, 1, 2])
    order = shuffled_by(keys, np.random.default_rng(0))
    assert keys[order].tolist() == sorted(keys) and sorted(order) == list(range(53))
    assert order[0] == 50 and not np.array_equal(order[3:], np.arange(50))


@pytest.mark.parametrize("seed", range(20))
def test_the_largest_group_goes_first_to_the_bin_that_has_least(seed):
    sizes = np.array([2, 3, 9, 3, 4])
    bin_of = packed(sizes, 3, np.random.default_rng(seed))
    assert bin_of[[2, 4]].tolist() == [0, 1] and bin_of[[1, 3]].tolist() == [2, 2] and bin_of[0] == 1  # 9, 4 + 2, 3 + 3
