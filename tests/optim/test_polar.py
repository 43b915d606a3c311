"""The polar factor against NumPy's SVD in float64, and the Polar Express coefficients against a Remez of our own."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmuon.errors import UsageError
from fedmuon.optim.polar import DEFAULT_STEPS, _by_iteration, coefficients, each, polar

METHODS = ("polar_express", "newton_schulz", "svd")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def gaussian(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).to(dtype)


def low_rank(rows: int, cols: int, rank: int) -> Tensor:
    """Products of small integers: the rank is exact in float32."""
    rng = np.random.default_rng(rank)
    factors = rng.integers(-3, 4, (rows, rank)), rng.integers(-3, 4, (rank, cols))
    return torch.from_numpy((factors[0] @ factors[1]).astype(np.float32))


def judge(M: Tensor, rank: int | None = None) -> np.ndarray:
    U, _, Vh = np.linalg.svd(M.double().numpy(), full_matrices=False)
    return U[..., :rank] @ Vh[..., :rank, :]


def error(P: Tensor, expected: np.ndarray) -> float:
    return float(np.linalg.norm(P.double().numpy() - expected) / np.linalg.norm(expected))


def compose(x: np.ndarray, quintics: list[tuple[float, float, float]]) -> np.ndarray:
    for a, b, c in quintics:
        x = a * x + b * x**3 + c * x**5
    return x


# The coefficients


def minimax_quintic(low: float, high: float) -> tuple[float, float, float]:
    """Remez: the odd quintic whose distance to 1 on [low, high] alternates between four points."""
    inner = np.array([0.75 * low + 0.25 * high, 0.25 * low + 0.75 * high])
    for _ in range(60):
        t = np.array([low, *inner, high])
        a, b, c, _ = np.linalg.solve(np.stack([t, t**3, t**5, [1, -1, 1, -1]], axis=1), np.ones(4))
        inner = np.sqrt(np.sort(np.roots([5 * c, 3 * b, a]).real))
    return a, b, c


def test_the_schedule_is_the_one_of_the_paper_derived_here() -> None:
    low, high, cushion = 1e-3, 1.0, 0.02407327424182761
    for a, b, c in coefficients("polar_express", 6):
        quintic = np.array(minimax_quintic(max(low, cushion * high), high))
        ends = compose(np.array([low, high]), [tuple(quintic)])
        quintic *= 2 / ends.sum() if low < cushion * high else 1  # centred on 1 where the cushion raised the lower end
        assert np.allclose([a * 1.01, b * 1.01**3, c * 1.01**5], quintic, rtol=1e-8, atol=0)
        low = float(compose(np.array([low]), [tuple(quintic)])[0])
        high = 2 - low


def test_the_composed_polynomial_takes_its_interval_to_one_and_gets_closer_with_every_step() -> None:
    x = np.geomspace(1.01e-3, 1.0, 20_001)
    errors = [np.abs(compose(x, coefficients("polar_express", steps)) - 1).max() for steps in range(1, 10)]
    assert all(later < earlier for earlier, later in pairwise(errors) if earlier > 1e-14)
    assert errors[6] < 1e-5
    assert errors[8] < 1e-14


def test_a_singular_value_rounded_above_one_does_not_escape() -> None:
    x = np.linspace(0.99, 1.01, 101)
    assert np.abs(compose(x, coefficients("polar_express", 7)) - 1).max() < 1e-5


# Accuracy


SHAPES = [(64, 576), (192, 768), (120, 400), (10, 84), (16, 150), (400, 120), (1, 50), (50, 1)]


@pytest.mark.parametrize("shape", SHAPES)
def test_polar_express_is_within_1e_3_by_default_and_needs_its_last_step(shape: tuple[int, int]) -> None:
    M = gaussian(*shape)
    assert error(polar(M), judge(M)) < 2e-5
    if min(shape) > 1:
        assert error(polar(M, steps=DEFAULT_STEPS["polar_express"] - 1), judge(M)) > 5e-4


def test_polar_express_gets_closer_with_every_step_down_to_rounding() -> None:
    M = gaussian(24, 60, dtype=torch.float64)
    errors = [error(polar(M, steps=steps), judge(M)) for steps in range(2, 10)]
    assert all(later < earlier for earlier, later in pairwise(errors) if earlier > 1e-13)
    assert errors[-1] < 1e-13


def test_newton_schulz_is_the_usual_quintic() -> None:
    M = gaussian(12, 30, dtype=torch.float64)
    U, s, Vh = np.linalg.svd(M.numpy(), full_matrices=False)
    values = compose(s / np.linalg.norm(s), [(3.4445, -4.7750, 2.0315)] * 5)
    assert error(polar(M, "newton_schulz"), (U * values) @ Vh) < 1e-12
    assert 0.67 < values.min() < values.max() < 1.15


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 3), max_size=2), st.integers(1, 9), st.integers(1, 9), st.sampled_from(METHODS))
def test_any_stack_equals_its_matrices_one_by_one(stack: list[int], rows: int, cols: int, method: str) -> None:
    M = gaussian(*stack, rows, cols, dtype=torch.float64)
    P = polar(M, method)
    assert P.shape == M.shape
    singles = torch.stack([polar(matrix, method) for matrix in M.reshape(-1, rows, cols)])
    assert torch.allclose(P.reshape(-1, rows, cols), singles, rtol=0, atol=1e-9)
    if method == "svd":
        assert error(P, judge(M)) < 1e-9


@settings(max_examples=30, deadline=None)
@given(st.floats(-30, 30), st.sampled_from(METHODS))
def test_the_scale_of_the_input_does_not_matter(exponent: float, method: str) -> None:
    M = gaussian(6, 15)
    assert torch.allclose(polar(M * 10.0**exponent, method), polar(M, method), rtol=0, atol=1e-5)


# On the Gram matrix


def conditioned(rows: int, cols: int, digits: int) -> Tensor:
    """Singular values from 1 down to 10^-digits, evenly in the exponent."""
    rng = np.random.default_rng(digits)
    U, V = (np.linalg.qr(rng.standard_normal((side, rows)))[0] for side in (rows, cols))
    return torch.from_numpy((U * np.logspace(0, -digits, rows)) @ V.T).float()


WIDE = [gaussian(24, 216), conditioned(24, 216, 1), conditioned(24, 216, 2), low_rank(24, 216, 7)]


@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("steps", [5, 7, 9])
@pytest.mark.parametrize("M", WIDE, ids=["gaussian", "1e1", "1e2", "rank 7"])
def test_the_gram_matrix_is_as_exact_as_the_matrix(M: Tensor, steps: int, compute: torch.dtype) -> None:
    quintics = coefficients("polar_express", steps)
    expected = judge(M, 7 if torch.equal(M, WIDE[-1]) else None)
    on_gram, on_matrix = (error(_by_iteration(M, quintics, compute, wide), expected) for wide in (3, np.inf))
    assert on_gram < 1.5 * on_matrix + 1e-6


def test_the_gram_matrix_is_the_matrix_in_float64_for_any_polynomial() -> None:
    M = gaussian(5, 20, dtype=torch.float64)
    for method, steps in (("polar_express", 4), ("newton_schulz", 12)):
        quintics = coefficients(method, steps)
        for wide in (M, M.mT):
            found, expected = (_by_iteration(wide, quintics, torch.float64, ratio) for ratio in (3, np.inf))
            assert torch.allclose(found, expected, rtol=0, atol=1e-10) and not torch.equal(found, expected)


@pytest.mark.parametrize("digits", [4, 6])
def test_in_16_bits_the_gram_matrix_stays_bounded(digits: int) -> None:
    for method in ("polar_express", "newton_schulz"):
        P = polar(conditioned(24, 216, digits), method, steps=10, dtype="bfloat16")
        assert P.isfinite().all() and np.linalg.norm(P.numpy(), 2) < 1.3


@pytest.mark.parametrize("method", METHODS)
def test_stacks_of_one_shape_together_are_the_stacks_one_by_one(method: str) -> None:
    shapes = [(2, 4, 6), (2, 3, 4, 6), (2, 6, 4), (2, 4, 6), (2, 5, 30)]
    stacks = [gaussian(*shape, seed=n, dtype=torch.float64) for n, shape in enumerate(shapes)]
    for joined in (True, False):
        for M, P in zip(stacks, each(stacks, method, together=joined), strict=True):
            assert P.shape == M.shape
            assert torch.allclose(P, polar(M, method), rtol=0, atol=1e-9)


# Zero, rank and what is not finite


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("compute", [None, "bfloat16", "float32"])
def test_zero_gives_zero_and_nan_stays_where_it_is(method: str, dtype: torch.dtype, compute: str | None) -> None:
    M = gaussian(5, 4, 7, dtype=dtype)
    M[0] = 0
    M[2, 1, 3] = float("nan")
    M[3, 0, 0] = float("-inf")
    P = polar(M, method, dtype=compute)
    assert P.dtype == dtype
    assert (P[0] == 0).all()
    assert P[1].isfinite().all() and P[4].isfinite().all() and P[1].abs().max() > 0.1
    assert not P[2].isfinite().all() and not P[3].isfinite().all()


LOW_RANK = [(64, 576, 20), (120, 400, 5), (84, 10, 3), (64, 64, 20), (16, 150, 1)]


@pytest.mark.parametrize(("rows", "cols", "rank"), LOW_RANK)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_null_directions_stay_below_1e_3(rows: int, cols: int, rank: int, dtype: torch.dtype) -> None:
    M = low_rank(rows, cols, rank).to(dtype)
    expected = judge(M, rank)
    assert error(polar(M, "svd"), expected) < 1e-6
    U, _, Vh = np.linalg.svd(M.double().numpy())
    P = polar(M).double().numpy()
    null = max(np.linalg.norm(U[:, rank:].T @ P, 2), np.linalg.norm(P @ Vh[rank:].T, 2))
    assert null < 1e-3
    assert np.linalg.norm(P - expected, 2) < 2e-3


def test_svd_keeps_the_directions_of_a_large_16_bit_matrix() -> None:
    M = gaussian(160, 200, dtype=torch.bfloat16)  # max(m, n) * eps(bfloat16) > 1 would drop everything
    assert error(polar(M, "svd"), judge(M)) < 4e-3


# Calling it


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("compute", [None, "bfloat16", torch.float64])
def test_the_input_is_never_written(method: str, dtype: torch.dtype, compute: str | torch.dtype | None) -> None:
    plain, stack = gaussian(6, 9, dtype=dtype), gaussian(4, 6, 9, dtype=dtype)
    tolerance = 1e-2 if compute == "bfloat16" else 1e-6
    for M in (plain, plain.mT, stack[::2, :, 1::2]):
        before = M.clone()
        with torch.no_grad():
            P = polar(M, method, dtype=compute)
        assert torch.equal(M, before)
        assert P.data_ptr() != M.data_ptr()
        assert torch.allclose(P, polar(M.contiguous(), method, dtype=compute), atol=tolerance)


@pytest.mark.parametrize("method", METHODS)
def test_autocast_does_not_lower_the_precision(method: str) -> None:
    M = gaussian(16, 40)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = polar(M, method)
    assert torch.equal(inside, polar(M, method))


@pytest.mark.parametrize("method", ["polar_express", "newton_schulz"])
def test_it_works_under_vmap(method: str) -> None:
    M = gaussian(3, 7, 9)
    mapped = torch.func.vmap(lambda m: polar(m, method), in_dims=2, out_dims=2)(M)
    expected = torch.stack([polar(M[:, :, i], method) for i in range(9)], dim=2)
    assert torch.allclose(mapped, expected, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(0, 3, 5), (2, 0, 5), (0, 0)])
def test_an_empty_stack_is_itself(method: str, shape: tuple[int, ...]) -> None:
    assert polar(torch.empty(shape), method).shape == shape


def test_16_bit_inputs_are_computed_in_float32_unless_asked_otherwise() -> None:
    M = gaussian(32, 100, dtype=torch.bfloat16)
    assert torch.equal(polar(M), polar(M.float()).bfloat16())
    low = error(polar(M.float(), dtype=torch.bfloat16), judge(M))
    assert 2e-3 < low < 3e-2


def test_wrong_options_name_the_key_and_what_is_allowed() -> None:
    M = gaussian(3, 4)
    with pytest.raises(UsageError, match=r"algorithm\.polar\.method=polar_expres .*did you mean 'polar_express'"):
        polar(M, "polar_expres")
    with pytest.raises(UsageError, match=r"algorithm\.polar\.steps=0"):
        polar(M, steps=0)
    for dtype in ("float16", torch.float16, "double"):
        with pytest.raises(UsageError, match=r"algorithm\.polar\.dtype=.*bfloat16, float32, float64"):
            polar(M, dtype=dtype)
    for wrong in (torch.ones(3), torch.ones(3, 3, dtype=torch.int64), torch.ones(3, 3, dtype=torch.complex64)):
        with pytest.raises(UsageError, match="stack of real matrices"):
            polar(wrong)
