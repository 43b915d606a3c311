"""Gradients that are products add themselves to the weights: the same steps in fewer calls."""

from shutil import which
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from fedmuon.engines import trace
from fedmuon.engines.running import Running
from fedmuon.models import MLP
from fedmuon.tasks import ImageClassification
from tests.engines import rounds
from tests.engines.rounds import BATCH, MODELS, Rounds, algorithm_of, differences
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


def test_steps_of_the_usual_shape_are_recorded_and_no_others(fused: list[int]) -> None:
    """Each record takes a moment: sizes that may never come again are repeated as they are, once they have."""
    Rounds("mlp", algorithm_of("fedavg"), DOUBLE, name="stacked", workers=1).run(chunk=1)
    assert fused == [2], "of batches of four; some clients have one or two samples less"


class Sized(ImageClassification):
    """Logs a number for batches of one size only."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        if len(batch[1]) == BATCH:
            self.log("full", 1.0)
        return super().training_step(batch, batch_idx)


def test_what_is_fused_does_not_depend_on_the_steps_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a resumed run, or on a thread that sees other clients."""
    monkeypatch.setattr(rounds, "SIZES", (3, 8, 8))
    monkeypatch.setattr(rounds, "ImageClassification", Sized)
    monkeypatch.setitem(MODELS, "wide", (1, 28, lambda shape: MLP(shape, 3, [200, 200])))
    found = []
    for anew in (False, True):
        one = Rounds("wide", algorithm_of("fedavg"), torch.float32, name="stacked", workers=1, compile="fuse")
        for _ in range(3):
            found.append(one.run(rounds=1, chunk=1))
            if anew:
                one.engine = Running(one.engine.options, one.client)
    for left, right in zip(found[:3], found[3:], strict=True):
        assert all(torch.equal(left[name], right[name]) for name in left)


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


class Factors(nn.Module):
    """The gradient of each of two factors of a matrix is a product with the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(5, 36)), nn.Parameter(torch.randn(3, 5))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ (self.second @ self.first).mT / 10


class Parts(nn.Module):
    """The same where a factor is a part of a parameter, which comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.pair, self.outer = nn.Parameter(torch.randn(2, 5, 3) / 5), nn.Parameter(torch.randn(36, 5) / 5)

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.pair.unbind(0)
        return x.flatten(1) @ (self.outer @ one) + other.sum()


class Sum(nn.Module):
    """Two parameters have one product for their gradient, which is not computed twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (nn.Parameter(torch.randn(36, 3) / 6) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ (self.one + self.other)


@pytest.mark.parametrize("network", [Factors, Parts, Sum])
def test_products_that_something_else_needs_or_that_a_step_changes_stay(
    network: type[nn.Module], monkeypatch: pytest.MonkeyPatch, fused: list[int]
) -> None:
    monkeypatch.setitem(MODELS, "factors", (1, 6, lambda shape: network()))
    check("factors", "fedavg")
    assert fused and not any(fused)


class Counting(ImageClassification):
    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        self.log("number", float(batch_idx))
        return super().training_step(batch, batch_idx)


def test_steps_that_cannot_be_recorded_are_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "ImageClassification", Counting)
    monkeypatch.setattr(trace, "_ENOUGH", 0)
    one = Rounds("mlp", algorithm_of("fedavg"), DOUBLE, name="stacked", workers=1, compile="fuse")
    one.run()
    (note,) = one.engine.notes
    assert note.startswith("local steps that cannot be recorded go through Python: ") and "float(batch_idx)" in note


@pytest.mark.skipif(not which("c++"), reason="torch.compile needs a C++ compiler")
def test_compiled_steps_are_the_same_steps() -> None:
    expected = reference("smooth", "fedavg").run(1)
    one = Rounds("smooth", algorithm_of("fedavg"), DOUBLE, name="stacked", workers=2, compile="inductor")
    found = one.run(1)
    assert max(differences(expected, found, "smooth").values()) < 1e-10 and not one.engine.notes
    assert any(record.repeat for record in one.engine.traced._recorded.values())
