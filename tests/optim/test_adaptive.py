"""Adaptive against torch.optim and against values worked out by hand from the equations of arXiv 2003.00295."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedmuon.errors import UsageError
from fedmuon.optim.adaptive import Adaptive


def parameters() -> list[nn.Parameter]:
    rng = np.random.default_rng(0)
    return [nn.Parameter(torch.from_numpy(rng.standard_normal(shape))) for shape in ((3, 4), (5,), ())]


def gradients(step: int, params: list[nn.Parameter]) -> list[Tensor]:
    rng = np.random.default_rng(100 + step)
    return [torch.from_numpy(np.asarray(10.0 ** rng.uniform(-6, 1) * rng.standard_normal(p.shape))) for p in params]


def run(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], steps: int = 12) -> Tensor:
    params = parameters()
    optimizer = make(params)
    for step in range(steps):
        for p, g in zip(params, gradients(step, params), strict=True):
            p.grad = g
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in params])


def test_adam_with_bias_correction_is_torch_adam() -> None:
    ours = run(lambda p: Adaptive(p, 0.1, "adam", 0.9, 0.99, tau=1e-3, v0=0.0, bias_correction=True))
    torchs = run(lambda p: torch.optim.Adam(p, 0.1, (0.9, 0.99), eps=1e-3))
    assert (ours - torchs).abs().max() < 1e-12


def test_adam_without_bias_correction_is_another_optimizer() -> None:
    ours = run(lambda p: Adaptive(p, 0.1, "adam", 0.9, 0.99, tau=1e-3, v0=0.0))
    torchs = run(lambda p: torch.optim.Adam(p, 0.1, (0.9, 0.99), eps=1e-3))
    assert (ours - torchs).abs().max() > 1e-2


def test_adagrad_is_torch_adagrad() -> None:
    ours = run(lambda p: Adaptive(p, 0.1, "adagrad", beta1=0.0, tau=1e-3, v0=0.25))
    torchs = run(lambda p: torch.optim.Adagrad(p, 0.1, initial_accumulator_value=0.25, eps=1e-3))
    assert (ours - torchs).abs().max() < 1e-12


# lr 1, beta1 .5, beta2 .75, tau .5, so v0 = .25; D = 1, then D = -.5.
# m: .5, then 0. The second step is therefore nil, and a third with D = 1 has m = .5.
@pytest.mark.parametrize(
    ("kind", "v"),
    [
        # v: .75*.25 + .25*1; .75*.4375 + .25*.25; .75*.390625 + .25*1
        ("adam", [0.4375, 0.390625, 0.54296875]),
        # v: .25 + .25*1 (v < D^2); .5 - .25*.25 (v > D^2); .4375 + .25*1
        ("yogi", [0.5, 0.4375, 0.6875]),
        # v: .25 + 1; 1.25 + .25; 1.5 + 1
        ("adagrad", [1.25, 1.5, 2.5]),
    ],
)
def test_steps_worked_out_by_hand(kind: str, v: list[float]) -> None:
    x = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = Adaptive([x], 1.0, kind, beta1=0.5, beta2=0.75, tau=0.5)
    expected = 0.0
    for D, m, v_now in zip((1.0, -0.5, 1.0), (0.5, 0.0, 0.5), v, strict=True):
        x.grad = torch.tensor([-D], dtype=torch.float64)
        optimizer.step()
        expected += m / (math.sqrt(v_now) + 0.5)
        assert x.item() == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("kind", ["adam", "yogi", "adagrad"])
def test_a_saved_state_goes_on_bit_for_bit(kind: str) -> None:
    def make(params: list[nn.Parameter]) -> Adaptive:
        return Adaptive(params, 0.1, kind, bias_correction=True)

    class Resumed:
        """Is written to a file and read back before every step."""

        def __init__(self, params: list[nn.Parameter]) -> None:
            self.params, self.optimizer = params, make(params)

        def step(self) -> None:
            file = io.BytesIO()
            torch.save(self.optimizer.state_dict(), file)
            file.seek(0)
            self.optimizer = make(self.params)
            self.optimizer.load_state_dict(torch.load(file, weights_only=True))
            self.optimizer.step()

    assert torch.equal(run(make), run(Resumed))  # type: ignore[arg-type]


def test_a_parameter_without_gradient_and_the_gradients_themselves_stay() -> None:
    moved, still = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    moved.grad = torch.ones(2)
    optimizer = Adaptive([moved, still], 0.1)
    optimizer.step()
    assert torch.equal(still, torch.ones(2)) and still not in optimizer.state
    assert (moved < 1).all() and torch.equal(moved.grad, torch.ones(2))


def test_copies_are_independent() -> None:
    x = nn.Parameter(torch.ones(2))
    x.grad = torch.ones(2)
    optimizer = Adaptive([x], 0.1)
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.step()
    assert saved["state"][0]["step"] == 1 and optimizer.state[x]["step"] == 2
    assert not torch.equal(saved["state"][0]["m"], optimizer.state[x]["m"])


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("lr", [0.0, -1.0, math.nan, math.inf]),
        ("tau", [0.0, -1e-3, math.nan]),
        ("beta1", [-0.1, 1.0, math.nan]),
        ("beta2", [-0.1, 1.0, math.nan]),
        ("v0", [-1.0, math.nan]),
        ("kind", ["adamm"]),
    ],
)
def test_wrong_values_name_the_key(key: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(UsageError, match=rf"^server\.{key}={value}: must be "):
            Adaptive(parameters(), **{"lr": 0.1, key: value})
        with pytest.raises(UsageError, match=rf"^server\.{key}={value}: must be "):
            Adaptive([{"params": parameters(), key: value}], lr=0.1)
