"""The graph engine: on a CPU through recordings that stand for CUDA graphs, on a GPU through those."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from fedmuon.compose import Composer
from fedmuon.config import Engine
from fedmuon.engines import graph, memory
from fedmuon.engines.capture import CudaGraphs
from fedmuon.engines.engine import Assignment
from fedmuon.engines.graph import Graph
from fedmuon.engines.running import Running
from fedmuon.engines.sequential import Sequential
from fedmuon.engines.ways import Unsupported
from fedmuon.errors import UsageError
from fedmuon.job import checked_job
from tests.algorithms.test_compositions import ALGORITHMS
from tests.engines.clients import MODELS, Task, algorithm, client_of, trained
from tests.engines.recorded import Recorded

GPU = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]


def task(model: str, kind: Any = Task) -> Any:
    torch.manual_seed(0)
    return kind(MODELS[model]())


def graphs_for(device: str, faster: int = 0) -> Any:
    return Recorded(faster) if device == "cpu" else None


def both(of: Any, network: Any, device: str = "cpu", faster: int = 0, shifted: bool = True) -> Any:
    """(expected, found, engine, its notes): the sequential engine's answer and that of graphs."""
    expected = trained(Sequential(alone := client_of(deepcopy(network), of, device=device)), alone, of, shifted)
    client, notes = client_of(deepcopy(network), of, device=device), []
    engine = Graph(client, notes.append, graphs=graphs_for(device, faster))
    return expected, trained(engine, client, of, shifted), engine, notes


def same(expected: Any, found: Any) -> None:
    assert expected and all(m.steps and m.tensors["x"] for m in expected), "there is something to compare"
    assert [(m.client, m.steps) for m in expected] == [(m.client, m.steps) for m in found]
    for one, two in zip(expected, found, strict=True):
        assert one.metrics == pytest.approx(two.metrics, abs=1e-7)  # "correct" is float32
        assert one.metrics["loss"] == pytest.approx(two.metrics["loss"], abs=1e-10)
        for key, tensors in one.tensors.items():
            for name, t in tensors.items():
                torch.testing.assert_close(two.tensors[key][name], t, rtol=0, atol=1e-10, msg=f"{key} {name}")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_by_graphs_is_sequential(name: str, device: str) -> None:
    """BatchNorm, dropout, augmentation, shifted features, ragged clients, another cohort, rate and t in every round."""
    exact = {"algorithm.polar.dtype": "float64"} if "published" in name else {}  # bfloat16 flips with the last bit
    of = algorithm(name, **exact).algorithm
    expected, found, engine, notes = both(of, task("everything"), device, faster=list(ALGORITHMS).index(name) % 3)
    same(expected, found)
    assert sum("gradients of" in note for note in notes) == 1 and engine.way is not None
    if device == "cpu":
        assert engine.graphs.captures > 3 and engine.graphs.replays > 20


@pytest.mark.parametrize("faster", [0, 1])
def test_a_model_without_convolutions_and_shared_memory_of_cohorts(faster: int) -> None:
    of = algorithm("fedmuon", **{"algorithm.polar.method": "svd"}).algorithm
    expected, found, engine, notes = both(of, task("mlp"), faster=faster, shifted=False)
    same(expected, found)
    assert engine.way == ("stacked", "branches")[faster] and set(engine.ways) == {"stacked", "branches"}
    assert "polar.method=svd" in notes[0]


def test_a_recording_keeps_the_numbers_of_python_and_refuses_to_wait() -> None:
    """What the tests above rest on."""
    n, x, out = [2], torch.tensor([1.0, 3.0]), torch.zeros(2)

    def function() -> None:
        out.add_((x * n[0]).sum().view(1).expand(2))

    replay = Recorded().capture(function)
    assert out.tolist() == [0, 0], "recording computes nothing"
    n[0], x[0] = 5, 2.0
    replay()
    assert out.tolist() == [10, 10]
    replay()
    assert out.tolist() == [20, 20]
    for waits in (lambda: x.sum().item(), lambda: torch.tensor([1.0]), lambda: x[x > 1], lambda: torch.rand(2)):
        with pytest.raises(RuntimeError, match="synchronizing"):
            Recorded().capture(waits)


class Itemizing(Task):
    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * 2 if loss.item() > 0 else loss


class Copying(Task):
    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * torch.tensor(2.0)


class Noisy(Task):
    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return super().training_step((dropout(batch[0], 0.2), batch[1]), batch_idx)


class Recurrent(Task):
    def __init__(self, network: nn.Module) -> None:
        super().__init__(nn.Sequential(nn.Flatten(2), nn.LSTM(36, 5, batch_first=True), Last(), nn.Linear(5, 3)))


class Last(nn.Module):
    def forward(self, states: Any) -> Tensor:
        return states[0][:, -1]


@pytest.mark.parametrize(
    ("kind", "name", "why"),
    [(Itemizing, "sequential", "_local_scalar_dense"), (Copying, "stacked", "lift_fresh"), (Noisy, "sequential", "")],
)
def test_a_task_that_cannot_be_captured_goes_on_and_says_why(kind: Any, name: str, why: str, monkeypatch: Any) -> None:
    graphs = Recorded()
    monkeypatch.setattr(graph, "CudaGraphs", lambda device: graphs)
    of = algorithm("fedavg").algorithm
    network = task("mlp", kind)
    expected = trained(Sequential(alone := client_of(deepcopy(network), of)), alone, of)
    client = client_of(deepcopy(network), of)
    running = Running(Engine(name="graph"), client)
    same(expected, trained(running, client, of))
    assert running.name == name and why in running.notes[0] and "from here on" in running.notes[0]
    assert graphs.captures == 0, "what waits is found before"


def test_norms_and_dropout_are_switched_between_rounds() -> None:
    """As a callback does that freezes or schedules them, in the middle of a run."""
    of, found = algorithm("fedavg").algorithm, []
    kinds: list[Any] = [Sequential, lambda client: Graph(client, print, graphs=Recorded())]
    for kind in kinds:
        client = client_of(task("everything"), of)
        engine = kind(client)
        trained(engine, client, of)
        client.task.network[1].eval()
        client.task.network[3].p = 0.9
        found.append(trained(engine, client, of))
    same(*found)
    assert engine.graphs.captures > 3 and engine.graphs.replays > 20, "the second is graphs"


@pytest.mark.parametrize("message", ["CUDA out of memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED"])
def test_a_way_for_which_memory_is_too_little_leaves_it_to_the_others(message: str, monkeypatch: Any) -> None:
    of, held = algorithm("fedavg").algorithm, []
    monkeypatch.setattr(graph, "stacked", lambda loss, size: Full(message, held))
    expected, found, engine, _ = both(of, task("mlp"))
    same(expected, found)
    assert engine.way == "branches" and not any(reference() for reference in held)


class Full:
    """A way that holds a tensor when it fails."""

    def __init__(self, message: str, held: list[Any]) -> None:
        self.message, self.held = message, held

    def __call__(self, *given: Any) -> Any:
        activations = torch.zeros(3)
        self.held.append(weakref.ref(activations))
        raise RuntimeError(self.message)


def test_a_recurrent_task_runs_by_branches() -> None:
    of = algorithm("fedavg").algorithm
    expected, found, engine, _ = both(of, task("mlp", Recurrent), faster=1)
    same(expected, found)
    assert engine.way == "branches"


def test_the_way_is_kept_and_out_of_memory_makes_smaller_graphs(monkeypatch: Any) -> None:
    monkeypatch.setattr(graph, "CudaGraphs", lambda device: Recorded(faster=1))
    of = algorithm("fedmuon").algorithm
    network = task("everything")
    expected = trained(Sequential(alone := client_of(deepcopy(network), of)), alone, of)
    real = Graph._update

    def small(self: Any, cohort: Any, active: int) -> None:
        if active > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        real(self, cohort, active)

    monkeypatch.setattr(Graph, "_update", small)
    client = client_of(deepcopy(network), of)
    running = Running(Engine(name="graph"), client)
    same(expected, trained(running, client, of))
    assert running.checkpoint() == {"name": "graph", "largest": 2, "alone": False, "way": "branches"}
    assert sum("gradients of" in note for note in running.notes) == 1

    again = Running(Engine(name="auto"), client)
    again.restore({"name": "graph", "largest": 2, "way": "branches"})
    assert again.name == "stacked" and "no graphs on cpu" in again.notes[-1], "a CPU goes on with what it has"


def test_graphs_share_a_pool_of_memory_for_as_long_as_it_lives(monkeypatch: Any) -> None:
    """torch retires a pool with the last of its graphs, and one in which a recording failed may be of no more use."""
    pools, used = count(), []

    class CUDAGraph:
        def replay(self) -> None: ...

    @contextmanager
    def recording(graph: Any, pool: int, stream: Any) -> Iterator[None]:
        used.append(pool)
        yield

    for name, stands in {
        "Stream": lambda device: None, "graph_pool_handle": lambda: next(pools), "CUDAGraph": CUDAGraph,
        "graph": recording,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stands)
    graphs = CudaGraphs(torch.device("cuda"))
    alive = [graphs.capture(lambda: None) for _ in range(2)]
    assert used[0] == used[1]
    alive.clear()
    alive.append(graphs.capture(lambda: None))
    assert used[2] != used[1], "of a cohort that has grown"
    with pytest.raises(RuntimeError, match="no room"):
        graphs.capture(fails)
    alive.append(graphs.capture(lambda: None))
    assert used[4] != used[3] == used[2]


def fails() -> None:
    raise RuntimeError("no room")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_command_says_what_to_use(tmp_path: Any) -> None:
    from fedmuon.experiment import execute

    job = checked_job(Composer().compose(["engine=graph", f"run_dir={tmp_path}"]))
    with pytest.raises(UsageError, match=r"engine=graph: needs an NVIDIA GPU.*use engine=stacked"):
        execute(job)
    with pytest.raises(UsageError, match=r"engine=graph: is for NVIDIA GPUs.*trainer\.accelerator=cuda"):
        checked_job(Composer().compose(["engine=graph", "trainer.accelerator=cpu"]))


def test_a_task_that_cannot_be_stacked_has_no_bound_from_the_stack_s_memory(monkeypatch: Any) -> None:
    def footprint(device: Any, run: Any) -> int:
        raise Unsupported("no rule")

    monkeypatch.setattr(memory, "footprint", footprint)
    client = SimpleNamespace(device=torch.device("cuda"))
    one = SimpleNamespace(options=Engine(name="graph"), client=client, name="graph", largest=0, on_cpu=False)
    Running._measure(one, [Assignment(0, [np.arange(2)], np.arange(2), seed=0)], None)
    assert one.largest == 0
