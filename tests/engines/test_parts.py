"""The local steps of ragged clients as parts of one batch size."""

import numpy as np
import torch

from fedmuon import keyed
from fedmuon.engines.parts import Part, runs


def parts(batches: list[list[np.ndarray]], seeds: list[int], before: bool = False) -> list[list[Part]]:
    return [step for run in runs(batches, seeds, torch.device("cpu"), before) for step in run]


def test_rows_keys_and_indices_of_every_step() -> None:
    batches = [[np.array([5, 6]), np.array([7])], [np.array([1, 2]), np.array([3, 4])], [np.array([9])]]
    first, second = parts(batches, [10, 20, 30])
    assert [(part.rows, part.size) for part in first] == [((2,), 1), ((0, 1), 2)]
    assert [(part.rows, part.size) for part in second] == [((0,), 1), ((1,), 2)]
    assert first[1].index.tolist() == [[5, 6], [1, 2]] and second[1].index.tolist() == [[3, 4]]
    assert first[1].keys.tolist() == [keyed.of_step(10, 1), keyed.of_step(20, 1)]
    assert second[0].keys.tolist() == [keyed.of_step(10, 2)] and first[1].keys.dtype == torch.int32
    assert first[1].where == slice(0, 2) and second[1].where.tolist() == [1]


def test_the_full_gradient_has_keys_before_the_first_step_and_nobody_has_no_steps() -> None:
    steps = parts([[np.array([0]), np.array([1])]], [7], before=True)
    assert [part.keys.tolist() for (part,) in steps] == [[keyed.of_step(7, 0)], [keyed.of_step(7, -1)]]
    assert parts([], []) == [] and parts([[]], [1]) == []


def test_consecutive_steps_of_the_same_parts_lie_together() -> None:
    batches = [[np.arange(2) + 10 * k for k in range(3)] + [np.array([99])], [np.arange(2) for _ in range(2)]]
    both, alone, short = runs(batches, [1, 2], torch.device("cpu"))
    assert [(run.first, run.steps, run.active) for run in (both, alone, short)] == [(0, 2, 2), (2, 1, 1), (3, 1, 1)]
    assert both.numbers[0][:, :, 2:].tolist() == [[[0, 1], [0, 1]], [[10, 11], [0, 1]]]
