"""What repeats the operators of a step goes with what recorded it."""

import gc
import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d

from fedmuon.engines.trace import Flat, Traced


def recorded(x: Tensor) -> tuple[Traced, Any]:
    """A record that uses data as they are and an operator with flags, a convolution's gradient; whether the data live.

    Any view of their memory keeps the array, also one that only C++ holds.
    """
    array = np.ones((1, 1, 4, 4), dtype=np.float32)
    data = torch.from_numpy(array)

    def step(given: Flat) -> tuple[Flat, Any]:
        _, k, x = given
        weight, images = x.detach().requires_grad_(), data.clone().requires_grad_()
        x.sub_(k * torch.autograd.grad(conv2d(images, weight).sum(), weight)[0])
        return [], None

    traced = Traced("trace")
    traced.enough = 0
    traced("step", step, [torch.zeros(1), torch.tensor(1), x])
    assert isinstance(traced._recorded["step"].repeat, torch.jit.ScriptFunction)
    return traced, weakref.ref(array)


def test_a_record_is_all_that_holds_what_it_repeats() -> None:
    x = torch.zeros(1, 1, 2, 2)
    traced, data = recorded(x)
    gc.collect()
    traced.loop("step", lambda given: ([], None), torch.zeros(3, 1), 2, [x])
    assert torch.equal(x, torch.full_like(x, -9.0 * (1 + 2 + 3 + 4))) and data() is not None
    del traced
    gc.collect()
    assert data() is None
