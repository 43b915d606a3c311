"""What Muon does with a parameter follows the matrix that its routing shows: against NumPy's SVD, in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedmuon.algorithms import Muon, Polar
from fedmuon.algorithms.algorithm import Step

NAME, C, D = "network.blocks.0.attn.qkv.weight", 2, 4
SVD = Polar(method="svd")


def polar(matrix: np.ndarray) -> np.ndarray:
    u, _, vh = np.linalg.svd(matrix, full_matrices=False)
    return u @ vh


def stepped(algorithm: Muon, name: str, g: Tensor, momentum: Tensor, delta_g: Tensor) -> np.ndarray:
    """The change of a zero parameter [C, ...] by one local step at rate 1; `momentum` is advanced in place."""
    x = {name: torch.zeros_like(g)}
    down = {"x": {name: torch.zeros_like(g[0])}, "delta_g": {name: delta_g}}
    state = {"momentum": {name: momentum}}
    rule = algorithm.rule_for(name, tuple(g.shape[1:]))
    assert rule is algorithm
    step = Step(names=(name,), x=x, state=state, down=down, lr=torch.ones(C, dtype=g.dtype), k=1)
    rule.step({name: g.clone()}, step, algorithm.a)
    return x[name].numpy()


def sample(*shape: int) -> dict[str, Tensor]:
    rng = np.random.default_rng(0)
    g, momentum, delta_g = (rng.standard_normal(s) for s in ((C, *shape), (C, *shape), shape))
    return {"g": torch.from_numpy(g), "momentum": torch.from_numpy(momentum), "delta_g": torch.from_numpy(delta_g)}


def expected(parts: int, factor: float, a: float, beta: float, *, mixed_first: bool, **t: Tensor) -> np.ndarray:
    """-[(1 - a) P(M) + a G], P of each of `parts` equal blocks of rows; or -P((1 - a) M + a G)."""
    change = np.empty_like(t["g"].numpy())
    for client in range(C):
        M, G = (beta * t["momentum"] + t["g"]).numpy()[client], t["delta_g"].numpy()
        source = (1 - a) * M + a * G if mixed_first else M
        P = factor * np.concatenate([polar(block) for block in np.split(source, parts)])
        change[client] = -P if mixed_first else -((1 - a) * P + a * G)
    return change


@pytest.mark.parametrize("mix_order", ["polar_then_mix", "mix_then_polar"])
@pytest.mark.parametrize("split", [False, True])
def test_a_step_with_split_qkv_is_that_of_three_matrices(split: bool, mix_order: str) -> None:
    t = sample(3 * D, D)
    algorithm = Muon(alpha=0.3, beta=0.9, polar=SVD, split_qkv=split, mix_order=mix_order)
    want = {parts: expected(parts, 1.0, 0.3, 0.9, mixed_first=mix_order == "mix_then_polar", **t) for parts in (1, 3)}
    np.testing.assert_allclose(stepped(algorithm, NAME, **t), want[3 if split else 1], rtol=0, atol=1e-12)
    assert np.abs(want[1] - want[3]).max() > 0.1


@pytest.mark.parametrize("shape_scale", ["view", "kernel"])
@pytest.mark.parametrize("split, factor", [(False, 3**0.5), (True, 1.0)])
def test_the_shape_scale_is_that_of_the_parts(shape_scale: str, split: bool, factor: float) -> None:
    t = sample(3 * D, D)
    algorithm = Muon(alpha=0.3, beta=0.9, polar=SVD, split_qkv=split, shape_scale=shape_scale)
    want = expected(3 if split else 1, factor, 0.3, 0.9, mixed_first=False, **t)
    np.testing.assert_allclose(stepped(algorithm, NAME, **t), want, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "shape, matrix, view_factor, kernel_factor",
    [
        ((1, 1, 5), (1, 5), 1.0, 1.0),  # a class token: the direction of its vector
        ((1, 9, 4), (9, 4), 1.5, 1.5),  # a position embedding
        ((36, 1, 2, 2), (36, 4), 3.0, 1.0),  # a depthwise convolution
        ((4, 3, 4, 1), (4, 12), 1.0, 2.0),  # a convolution of 4 x 1
    ],
)
def test_steps_of_other_views(
    shape: tuple[int, ...], matrix: tuple[int, int], view_factor: float, kernel_factor: float
) -> None:
    t = sample(*shape)
    flat: Any = {name: one.reshape(*one.shape[: one.ndim - len(shape)], *matrix) for name, one in t.items()}
    algorithm = Muon(alpha=0.3, beta=0.9, polar=SVD, split_qkv=True)
    for kind, factor in (("none", 1.0), ("view", view_factor), ("kernel", kernel_factor)):
        want = expected(1, factor, 0.3, 0.9, mixed_first=False, **flat).reshape(C, *shape)
        fresh = {**t, "momentum": t["momentum"].clone()}
        found = stepped(replace(algorithm, shape_scale=kind), "network.p", **fresh)
        np.testing.assert_allclose(found, want, rtol=0, atol=1e-12)


def test_momentum_is_not_changed_by_the_split() -> None:
    """P is a view of M: what is sent and averaged is the same tensor, whole."""
    t = sample(3 * D, D)
    want = 0.9 * t["momentum"] + t["g"]
    stepped(Muon(beta=0.9, polar=SVD, split_qkv=True), NAME, **t)
    torch.testing.assert_close(t["momentum"], want, rtol=0, atol=1e-14)
