"""Gradients that are products add themselves to the weights: the same steps in fewer calls."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from fedmuon.engines import trace
from tests.engines.rounds import MODELS, Rounds, algorithm_of, differences
from tests.engines.test_engines import DOUBLE, reference

CHUNK = 3  # the first clients, whose first two steps have batches of one size


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many products each record took in."""
    counts: list[int] = []

    def counted(graph: GraphModule) -> None:
        fuse(graph)
        counts.append(sum(node.target is torch.ops.aten.baddbmm_.default for node in graph.graph.nodes))

    fuse = trace.fuse
    monkeypatch.setattr(trace, "fuse", counted)
    return counts


def check(model: str, algorithm: str, **given: Any) -> None:
    expected = reference(model, algorithm, **given).run(chunk=CHUNK)
    one = Rounds(model, algorithm_of(algorithm), DOUBLE, name="stacked", workers=1, compile="fuse", **given)
    found = one.run(chunk=CHUNK)
    assert max(differences(expected, found, model).values()) < 1e-12 and not one.engine.notes


@pytest.mark.parametrize(("model", "matrices"), [("mlp", 2), ("smooth", 2), ("twins", 1)])
def test_matrices_of_local_sgd(model: str, matrices: int, fused: list[int]) -> None:
    check(model, "fedavg")
    assert fused and set(fused) == {matrices}


@pytest.mark.parametrize("algorithm", ["fedprox", "fedmuon", "local_adamw"])
def test_rules_that_do_more_with_a_gradient(algorithm: str, fused: list[int]) -> None:
    check("mlp", algorithm)
    assert fused and not any(fused)


def test_a_clipped_gradient_is_needed_as_it_is(fused: list[int]) -> None:
    check("mlp", "fedavg", clip=0.5)
    assert fused and not any(fused)


def test_a_factor_that_a_step_changes_is_read_before(monkeypatch: pytest.MonkeyPatch, fused: list[int]) -> None:
    """The gradient of each of two factors of a matrix is a product with the other."""

    class Factors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Parameter(torch.randn(5, 36)), nn.Parameter(torch.randn(3, 5))

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1) @ (self.second @ self.first).mT / 10

    monkeypatch.setitem(MODELS, "factors", (1, 6, lambda shape: Factors()))
    check("factors", "fedavg")
    assert fused and not any(fused)
