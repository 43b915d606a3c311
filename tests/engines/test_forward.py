"""Captured evaluation: on a CPU through recordings that stand for CUDA graphs, on a GPU through those."""

from typing import Any

import pytest
import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn.functional import dropout

from fedmuon.engines.capture import CudaGraphs
from fedmuon.engines.forward import Forward
from tests.engines.recorded import Recorded
from tests.engines.test_graph import DEVICES


class Called(LightningModule):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3)).eval()


class Counting(nn.Module):
    """Counts how often its Python runs."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.calls, self.scale = inner, 0, nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        return self.inner(x)


def captured(module: nn.Module, device: str = "cpu") -> tuple[Called, Forward, list[str]]:
    task, notes = Called(module).to(device), []
    graphs: Any = Recorded() if device == "cpu" else CudaGraphs(torch.device(device))
    return task, Forward(task, graphs, notes.append), notes


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("low", [False, True])
def test_replays_are_what_the_module_computes(low: bool, mode: Any, device: str) -> None:
    """With short batches between, weights changed in place, and results that are kept from batch to batch."""
    module = Counting(network())
    task, forward, notes = captured(module, device)
    kept, expected, called = [], [], 0
    with mode():
        for number in range(16):
            x = torch.randn(3 if number % 4 == 3 else 5, 4, device=device)
            with torch.autocast(device, torch.bfloat16, enabled=low):
                expected.append(module(x))
                before = module.calls
                with forward.captured():
                    kept.append(task.network(x))
                called += module.calls - before
            torch._foreach_add_(list(module.parameters()), 0.1)
            torch._foreach_mul_([module.inner[1].running_var, module.inner[1].running_mean.add_(0.1)], 1.1)
    assert called == 8, "three runs and the capture, for each of the two shapes"
    assert notes == [] and "forward" not in vars(module)
    for one, two in zip(expected, kept, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0 if device == "cpu" else 1e-6)


def test_weights_that_are_put_in_the_place_of_others_are_those_that_count() -> None:
    """Such as averaged ones, which a task exchanges around its evaluation."""
    task, forward, _ = captured(network())
    x, first = torch.randn(5, 4), task.network[0].weight.data
    other = first + 1
    with torch.no_grad():
        for number in range(10):
            task.network[0].weight.data = other if number % 2 else first
            with forward.captured():
                found = task.network(x)
            assert torch.equal(found, task.network(x))


def test_hooks_and_calls_by_name_are_python() -> None:
    module = network()
    task, forward, notes = captured(module)
    seen: list[Any] = []
    handle = module[0].register_forward_hook(lambda *_: seen.append(1))
    with torch.no_grad(), forward.captured():
        for _ in range(5):
            task.network(torch.ones(2, 4))
        handle.remove()
        for _ in range(5):
            task.network(input=torch.ones(2, 4))
    assert len(seen) == 5 and forward.graphs.captures == 0 and notes == []  # type: ignore[attr-defined]


def waits(x: Tensor) -> Tensor:
    return x * 2 if x.sum().item() > 0 else x


@pytest.mark.parametrize(
    ("inner", "why"),
    [
        (lambda x: (x, x), "it returns tuple"),
        (lambda x: dropout(x, 0.5), "draws from a random generator"),
        (waits, "_local_scalar_dense"),
    ],
)
def test_a_module_that_no_graph_can_hold_is_called_and_said(inner: Any, why: str) -> None:
    module = Counting(inner)
    task, forward, notes = captured(module)
    with torch.no_grad():
        for _ in range(5):
            with forward.captured():
                task.network(torch.ones(2, 4))
    assert module.calls >= 5 and len(notes) == 1 and why in notes[0] and "calls network as it is" in notes[0]
