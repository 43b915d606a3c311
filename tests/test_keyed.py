"""Keyed random numbers: uniform, independent, and the same however they are computed."""

import numpy as np
import pytest
import torch

from fedmuon import keyed

KEY = torch.tensor(keyed.of_step(7, 1), dtype=torch.int32)


def test_uniform_numbers_fill_the_interval_evenly():
    drawn = keyed.uniform(KEY, "a", (100_000,))
    assert drawn.dtype == torch.float32 and drawn.min() >= 0 and drawn.max() < 1
    counts = np.histogram(drawn, bins=20, range=(0, 1))[0]
    assert ((counts - 5000) ** 2 / 5000).sum() < 45  # chi-squared, 19 degrees of freedom: 1 in 1000 is above 43.8
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.015


def test_integers_are_uniform_and_normal_numbers_normal():
    counts = torch.bincount(keyed.integers(KEY, "b", 9, (90_000,)))
    assert len(counts) == 9 and abs(counts - 10_000).max() < 400
    drawn = keyed.normal(KEY, "c", (200_000,), torch.float64)
    assert drawn.dtype == torch.float64
    moments = [float(drawn.pow(p).mean()) for p in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=0.06)


def test_keys_purposes_and_layers_have_streams_of_their_own():
    """Shifted copies count as dependent, too: the streams of two purposes have no common stretch."""
    keys = keyed.of_samples(torch.tensor([1, 2], dtype=torch.int32), 3)
    assert keys.shape == (2, 3) and keys.unique().numel() == 6
    drawn = torch.stack([keyed.uniform(k, p, (50_000,)) for k in keys.flatten()[:3] for p in ("x", "y", "z")])
    assert (torch.corrcoef(drawn) - torch.eye(9)).abs().max() < 0.02
    stretches = {tuple(row[i : i + 3].tolist()) for row in drawn for i in range(0, 49_000)}
    assert len(stretches) == 9 * 49_000


def test_a_stack_of_keys_vmapped_keys_and_single_keys_give_the_same():
    keys = keyed.of_samples(torch.tensor([5, -6], dtype=torch.int32), 4)
    together = keyed.uniform(keys, "p", (2, 3))
    assert together.shape == (2, 4, 2, 3)
    assert torch.equal(torch.func.vmap(lambda k: keyed.uniform(k, "p", (2, 3)))(keys), together)
    assert torch.equal(keyed.uniform(keys[1, 2], "p", (2, 3)), together[1, 2])
    assert torch.equal(keyed.of_samples(torch.tensor(5, dtype=torch.int32), 2), keys[0, :2])


def test_the_numbers_are_those_of_every_other_version():
    assert keyed.of_step(123, 4) == KNOWN_KEY
    key = torch.tensor(KNOWN_KEY, dtype=torch.int32)
    assert keyed.integers(key, "known", 1000, (4,)).tolist() == KNOWN


KNOWN_KEY, KNOWN = -1902999433, [284, 860, 715, 770]
