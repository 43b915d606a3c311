"""The rate as a function of the round, by hand."""

import pytest

from fedmuon.schedule import factor


def test_constant_is_one():
    assert [factor("constant", r, rounds=3) for r in range(5)] == [1.0] * 5


def test_cosine_falls_to_zero_and_stays_there():
    assert [factor("cosine", r, rounds=4) for r in (0, 2, 4, 5, 400)] == pytest.approx([1, 0.5, 0, 0, 0])
    assert factor("cosine", 1, rounds=3) == pytest.approx(0.75)


def test_steps_multiply():
    assert [factor("step", r, rounds=9, step_every=2, step_factor=0.1) for r in range(5)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01]
    )


def test_warm_up_scales_the_first_rounds():
    assert [factor("constant", r, rounds=9, warmup=4) for r in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    assert factor("cosine", 1, rounds=4, warmup=4) == pytest.approx(0.5 * factor("cosine", 1, rounds=4))
