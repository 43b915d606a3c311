"""One class of tests for every engine: it gives the sequential engine's answer (shared with `graph`, where CUDA is)."""

import random
from typing import Any, ClassVar

import pytest
import torch

from fedmuon.engines import trace
from fedmuon.models import MLP
from tests.algorithms.test_compositions import ALGORITHMS
from tests.engines.rounds import MODELS, SMOOTH, Rounds, algorithm_of, differences

DOUBLE, SINGLE = torch.float64, torch.float32
SMALL = [name for name in MODELS if name != "resnet18"]


def reference(model: str, algorithm: str, dtype: torch.dtype = DOUBLE, **given: Any) -> Rounds:
    return Rounds(model, algorithm_of(algorithm, dtype), dtype, name="sequential", workers=1, **given)


class EngineTests:
    """What an engine must keep; `options` name it."""

    options: ClassVar[dict[str, Any]]

    def made(self, model: str, algorithm: str, dtype: torch.dtype = DOUBLE, **given: Any) -> Rounds:
        return Rounds(model, algorithm_of(algorithm, dtype), dtype, **self.options, **given)

    def check_agrees(self, model: str, algorithm: str, chunks: tuple[int | None, ...] = (None,), **given: Any) -> None:
        one = reference(model, algorithm, **given)
        expected, logits = one.run(), one.logits()
        for chunk in chunks:
            other = self.made(model, algorithm, **given)
            found = other.run(chunk=chunk)
            assert not other.engine.notes
            assert max(differences(expected, found, model).values()) < 1e-10
            torch.testing.assert_close(other.logits(), logits, rtol=1e-10, atol=1e-10)

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_every_algorithm_in_float64(self, algorithm: str) -> None:
        self.check_agrees("mlp", algorithm, clip=0.5 if algorithm in ("fedavg", "fedmuon") else None)

    @pytest.mark.parametrize("model", SMALL)
    def test_every_model_in_float64_whatever_the_chunk(self, model: str) -> None:
        self.check_agrees(model, "fedmuon", (None, 1, 3))

    def test_resnet18_in_float32_after_one_step(self) -> None:
        """Its eleven million parameters in one step of plain SGD; what is particular about it is in `batchnorm`."""
        expected = reference("resnet18", "fedavg", SINGLE).run(1, steps=1)
        found = self.made("resnet18", "fedavg", SINGLE).run(1, steps=1)
        assert max(differences(expected, found, "resnet18").values()) < 1e-5

    @pytest.mark.parametrize("model", SMALL)
    def test_one_step_in_float32(self, model: str) -> None:
        expected = reference(model, "fedmuon", SINGLE).run(1, steps=1)
        found = self.made(model, "fedmuon", SINGLE).run(1, steps=1)
        assert max(differences(expected, found, model).values()) < 1e-5

    @pytest.mark.parametrize("algorithm", ["fedavg", "fedmuon"])
    @pytest.mark.parametrize("model", SMALL)
    def test_three_rounds_in_float32(self, model: str, algorithm: str) -> None:
        """Smooth models to 1e-4; elsewhere ReLU and pooling branch, and rounding shows as much as in one engine."""
        expected = reference(model, algorithm, SINGLE).run()
        found = self.made(model, algorithm, SINGLE).run()
        worst = max(differences(expected, found, model).values())
        if model in SMOOTH:
            assert worst < 1e-4
            return
        spread = 0.0
        for number in range(5):
            moved = reference(model, algorithm, SINGLE)
            generator = torch.Generator().manual_seed(number)
            with torch.no_grad():
                for p in moved.client.learned.values():
                    up = torch.rand(p.shape, generator=generator) < 0.5
                    p.copy_(torch.where(up, torch.nextafter(p, p + 1), torch.nextafter(p, p - 1)))
            spread = max(spread, *differences(expected, moved.run(), model).values())
        assert worst <= 10 * spread


class TestStacked(EngineTests):
    options: ClassVar[dict[str, Any]] = {"name": "stacked", "workers": 1, "compile": "none"}


@pytest.mark.parametrize("model", ["cnn_pfl", "batchnorm"])
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("dtype", [DOUBLE, SINGLE])
def test_bits_do_not_depend_on_threads_nor_sequential_ones_on_chunks(
    model: str, engine: str, dtype: torch.dtype
) -> None:
    one = Rounds(model, algorithm_of("fedmuon"), dtype, name=engine, workers=1).run()
    several = Rounds(model, algorithm_of("fedmuon"), dtype, name=engine, workers=3)
    found = several.run()
    assert several.engine.lanes is not None and all(torch.equal(one[name], found[name]) for name in one)
    if engine == "sequential":
        chunked = Rounds(model, algorithm_of("fedmuon"), dtype, name=engine, workers=2).run(chunk=3)
        assert all(torch.equal(one[name], chunked[name]) for name in one)


@pytest.mark.parametrize("compile", ["none", "trace"])
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("algorithm", ["scaffold", "fedcm", "fedadamw"])
def test_parameters_with_one_gradient_step_alike(algorithm: str, engine: str, compile: str) -> None:
    """Rules overwrite gradients, and autograd hands the same tensor to both terms of a sum."""
    found = Rounds("twins", algorithm_of(algorithm), DOUBLE, clip=0.1, name=engine, compile=compile, workers=1).run()
    first, second = found["network.first"], found["network.second"]
    assert first.abs().max() > 1e-3
    torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-12)


def check_traced(model: str, algorithm: str, engine: str, monkeypatch: Any) -> None:
    """Rounds whose operators are repeated are bit for bit those that Python goes through."""
    monkeypatch.setattr(trace, "_ENOUGH", 2)
    found = [
        Rounds(model, algorithm_of(algorithm, SINGLE), SINGLE, clip=0.5, name=engine, workers=1, compile=how)
        for how in ("none", "trace")
    ]
    first, second = (one.run(3, chunk=3, steps=2) for one in found)
    repeated = {key[0] for key, record in found[1].engine.traced._recorded.items() if record.repeat}
    waits = any(group.rule.waits for group in found[1].client.stack.groups)
    assert "gradients" in repeated if waits else "local step" in repeated
    records = found[1].engine.traced._recorded.values()
    assert all(isinstance(record.repeat, torch.jit.ScriptFunction) for record in records)  # none in Python
    assert not found[0].engine.traced._recorded
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("model", ["cnn_pfl", "batchnorm", "smooth_groupnorm", "vit_tiny", "lenet5"])
def test_a_traced_step_is_bit_equal_to_the_step_itself(model: str, engine: str, monkeypatch: Any) -> None:
    check_traced(model, "scaffold", engine, monkeypatch)


class Whim(torch.nn.Module):
    """What it computes depends on a number of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(36, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.flatten(1)) * random.random()


def test_a_network_of_one_s_own_is_not_recorded_unless_asked(monkeypatch: Any) -> None:
    monkeypatch.setattr(trace, "_ENOUGH", 2)
    monkeypatch.setitem(MODELS, "whim", (1, 6, lambda shape: Whim()))
    runs = []
    for how in ("none", None):
        one = reference("whim", "fedmuon", compile=how)
        one.client.alone = True
        runs.append((one.run(), {key[0] for key in one.engine.traced._recorded}))
    (expected, nothing), (found, recorded) = runs
    assert not nothing and recorded == {"step"}
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_traced_rule_of_every_algorithm_is_bit_equal(algorithm: str, monkeypatch: Any) -> None:
    check_traced("mlp", algorithm, "sequential", monkeypatch)


@pytest.mark.parametrize(("model", "default"), [("cnn", True), ("cnn_pfl", True), ("smooth_groupnorm", False)])
def test_channels_last_changes_the_layout_alone(model: str, default: bool) -> None:
    """By default where the network is the package's own: another's `view` after a convolution could not take it."""
    seen: list[bool] = []

    def run(**given: Any) -> tuple[Any, Any]:
        seen.clear()
        one = reference(model, "fedmuon", **given)
        last = [m for m in one.task.modules() if isinstance(m, torch.nn.Conv2d)][-1]
        last.register_forward_hook(lambda m, a, out: seen.append(not out.is_contiguous()))
        return one.run(), set(seen)

    (first, rows), (other, columns) = run(channels_last=False), run(channels_last=True)
    assert rows == {False} and columns == {True} and run()[1] == {default}
    assert max(differences(first, other, model).values()) < 1e-10


@pytest.mark.parametrize("workers", [1, 3])
def test_bf16_is_a_precision_of_local_training_alone(workers: int) -> None:
    full = reference("mlp", "fedavg", SINGLE).run(1)
    for engine in ("sequential", "stacked"):
        low = Rounds("mlp", algorithm_of("fedavg"), SINGLE, name=engine, workers=workers, precision="bf16").run(1)
        worst = max(differences(full, low, "mlp").values())
        assert 1e-6 < worst < 0.05 and low["network.layers.1.weight"].dtype == SINGLE


@pytest.mark.parametrize("precision", [None, "bf16"])
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_bits_do_not_depend_on_when_steps_are_recorded(
    engine: str, precision: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a size where a product with a bias rounds otherwise than a product and a sum."""
    monkeypatch.setitem(MODELS, "wide", (1, 28, lambda shape: MLP(shape, 3, [200, 200])))
    found = []
    for enough, workers in ((10**6, 1), (0, 1), (2, 3), (5, 2)):
        monkeypatch.setattr(trace, "_ENOUGH", enough)
        one = Rounds("wide", algorithm_of("fedavg"), SINGLE, name=engine, workers=workers, precision=precision)
        found.append(one.run())
        at_once = engine == "stacked"  # what is fused rounds otherwise
        assert bool(one.engine.traced._recorded) == (enough < 100 or at_once)
    for other in found[1:]:
        assert all(torch.equal(found[0][name], other[name]) for name in other)


def test_recording_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A known network may draw from torch's generator (stochastic depth); recording must not take its numbers."""

    class Drawing(MLP):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.dropout(super().forward(x), 0.5)

    monkeypatch.setitem(MODELS, "drawing", (1, 6, lambda shape: Drawing(shape, 3, [8])))
    Drawing.__module__ = "fedmuon.models.drawing"
    found = []
    for enough in (10**6, 0, 3):
        monkeypatch.setattr(trace, "_ENOUGH", enough)
        one = reference("drawing", "fedavg")
        one.client.alone = True
        found.append(one.run())
    for other in found[1:]:
        assert all(torch.equal(found[0][name], other[name]) for name in other)


def test_a_transform_of_one_s_own_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_ENOUGH", 0)
    given: dict[str, Any] = {}

    def through_numpy(batch: Any) -> Any:
        return torch.from_numpy(batch[0].numpy() * 2), batch[1]

    for how in ("none", None):
        one = reference("mlp", "fedavg", compile=how)
        one.client.data.transform = through_numpy
        one.engine = type(one.engine)(one.engine.options, one.client)
        given[str(how)] = one.run()
        assert ("gradients" in {key[0] for key in one.engine.traced._recorded}) is False
    assert all(torch.equal(given["none"][name], given["None"][name]) for name in given["None"])


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_norms_and_dropout_are_switched_between_rounds(
    engine: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a callback does that freezes or schedules them, in the middle of a run."""
    monkeypatch.setattr(trace, "_ENOUGH", 0)
    found = []
    for how, threads in (("none", 1), ("trace", workers)):
        of_model = {}
        for model in ("batchnorm", "cnn_pfl"):
            one = Rounds(model, algorithm_of("fedavg"), DOUBLE, name=engine, workers=threads, compile=how)
            one.run(1)
            for module in one.task.modules():
                if isinstance(module, torch.nn.BatchNorm2d):
                    module.eval()
                if isinstance(module, torch.nn.Dropout):
                    module.p = 0.9
            of_model |= {f"{model}.{name}": t for name, t in one.run(1).items()}
        found.append(of_model)
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
