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
        for number in range(24):
            x = torch.randn(3 if number % 4 == 3 else 5, 4, device=device)
            with torch.autocast(device, torch.bfloat16, enabled=low):
                expected.append(module(x))
                before = module.calls
                with forward.captured():
                    kept.append(task.network(x))
                called += module.calls - before
            torch._foreach_add_(list(module.parameters()), 0.1)
            torch._foreach_mul_([module.inner[1].running_var, module.inner[1].running_mean.add_(0.1)], 1.1)
    assert called == 10, "four runs and the capture, for each of the two shapes"
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


class Switched(nn.Module):
    """One of its parts, what it holds and the precision may be other ones in the next call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.prototypes = network(), torch.eye(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) @ self.prototypes.to(x.dtype)


def test_modes_precision_and_tensors_that_change_are_those_of_the_call() -> None:
    task, forward, notes = captured(Switched())
    x = torch.randn(5, 4)
    task.eval()
    with torch.no_grad():
        for number in range(36):
            task.network.inner[1].train(number % 2 == 0)
            with torch.autocast("cpu", torch.bfloat16, enabled=number % 3 == 0):
                kept = {name: b.clone() for name, b in task.network.named_buffers()}
                with forward.captured():
                    found = task.network(x)
                for name, b in task.network.named_buffers():
                    b.copy_(kept[name])
                expected = task.network(x)
                for name, b in task.network.named_buffers():
                    b.copy_(kept[name])
            assert found.dtype == expected.dtype and torch.equal(found, expected)
        task.network.inner[1].eval()
        task.network.prototypes = torch.full((3, 3), 2.0)
        for _ in range(6):
            with forward.captured():
                assert torch.equal(task.network(x), task.network.inner(x) @ torch.full((3, 3), 2.0))
    assert forward.graphs.replays > 3 and notes == []  # type: ignore[attr-defined]


def test_what_is_no_function_of_tensors_alone_is_called() -> None:
    """Gradients, dropout at work, modules of TorchScript."""
    module = Counting(network())
    task, forward, notes = captured(module)
    task.scripted = torch.jit.trace(network(), torch.ones(2, 4))
    forward = Forward(task, forward.graphs, notes.append)
    task.network.inner[2].train()
    x = torch.ones(2, 4)
    for _ in range(6):
        with torch.no_grad(), forward.captured():
            task.network(x)
            task.scripted(x)
    task.network.inner[2].eval()
    for _ in range(6):
        with torch.enable_grad(), forward.captured():
            given = x.clone().requires_grad_()
            assert torch.autograd.grad(task.network(given).sum(), given)[0].shape == x.shape
    assert module.calls == 12 and forward.graphs.captures == 0 and notes == []  # type: ignore[attr-defined]


class Two(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = network()
        self.network = nn.Sequential(self.backbone, nn.Linear(3, 2))


def test_a_module_that_calls_another_is_one_piece() -> None:
    task, notes, graphs = Two().eval(), [], Recorded()
    forward: Any = Forward(task, graphs, notes.append)
    inside: list[int] = []
    capture = graphs.capture

    def nested(function: Any) -> Any:
        inside.append(len(inside))
        found = capture(function)
        assert inside.pop() == 0, "a capture in a capture"
        return found

    graphs.capture = nested  # type: ignore[method-assign]
    x = torch.randn(5, 4)
    with torch.no_grad():
        for _ in range(8):
            with forward.captured():
                found = task.network(x)
        assert torch.equal(found, task.network(x)) and notes == [] and graphs.replays > 2


def test_shapes_that_come_once_take_no_memory(monkeypatch: Any) -> None:
    monkeypatch.setattr("fedmuon.engines.forward.MOST", 2)
    task, forward, _ = captured(network())
    with torch.no_grad(), forward.captured():
        for size in (*range(2, 40), 50, 50, 51, 51, 52, 52):
            task.network(torch.ones(size, 4))
    assert len(forward._places) == 2


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
    graphs: Any = forward.graphs
    assert graphs.captures == 0, "a capture that fails may leave a pool of no use"
