"""Clients on several threads: the same bits as on one, whatever the task does."""

import os
import random
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.plugins.precision import Precision
from torch import Tensor
from torch.nn.functional import cross_entropy, dropout
from torchmetrics.classification import MulticlassAccuracy

from fedmuon.engines import lanes, trace
from tests.engines.rounds import Rounds, algorithm_of
from tests.engines.test_equality import SIZES, Itemizing, Noisy, Recurrent, Task, run, same


@pytest.mark.parametrize("model,algorithm", [("conv_batchnorm", "fedmuon"), ("dropout", "scaffold")])
@pytest.mark.parametrize(
    "engine,precision", [("sequential", "64-true"), ("sequential", "bf16-mixed"), ("stacked", "bf16-mixed")]
)
def test_results_do_not_depend_on_the_number_of_threads(
    model: str, algorithm: str, engine: str, precision: str, tmp_path: Any
) -> None:
    keys = {"trainer.precision": precision}
    found = [
        run(tmp_path / f"{workers}", model, engine, algorithm, **keys, **{"engine.workers": workers})
        for workers in (1, 3)
    ]
    same(found[0][0], found[1][0], 0.0)
    strip = [[{k: v for k, v in row.items() if k != "notes"} for row in rows] for _, rows in found]
    assert strip[0] == strip[1]


def _by_torch(x: Tensor) -> Tensor:
    return dropout(x, 0.2)


def _by_numpy(x: Tensor) -> Tensor:
    return x * float(np.random.beta(0.5, 0.5))


def _by_python(x: Tensor) -> Tensor:
    return x * random.random()


@pytest.mark.parametrize("drawn", [_by_torch, _by_numpy, _by_python])
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_task_that_draws_by_itself_trains_on_one_thread(drawn: Any, engine: str, tmp_path: Any) -> None:
    class Drawing(Task):
        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            return cross_entropy(drawn(self.network(batch[0])), batch[1])

    expected, _ = run(tmp_path / "a", "mlp", "sequential", "fedavg", Drawing)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    again, _ = run(tmp_path / "b", "mlp", "sequential", "fedavg", Drawing, **{"engine.workers": 1})
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    same(expected, again, 0.0)
    for workers in (1, 3):
        found, rows = run(tmp_path / f"{workers}", "mlp", engine, "fedavg", Drawing, **{"engine.workers": workers})
        same(expected, found, 0.0)
        notes = " ".join(rows[0].get("notes", []))
        if engine == "sequential":
            assert ("one thread from here on: it draws from a random generator" in notes) == (workers == 3)
        else:
            assert "engine=sequential from here on" in notes


class Measured(Task):
    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.accuracy = MulticlassAccuracy(3, average="micro")

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        logits = self.network(batch[0])
        self.accuracy.update(logits, batch[1])
        self.log("accuracy", self.accuracy)
        self.log("of_batch", self.accuracy(logits, batch[1]))
        return cross_entropy(logits, batch[1])


@pytest.mark.parametrize("workers", [1, 3])
def test_a_metric_of_torchmetrics_is_each_client_s_own(workers: int, tmp_path: Any) -> None:
    expected, rows = run(tmp_path / "a", "mlp", "sequential", "fedavg", Measured, **{"engine.workers": 1})
    found, others = run(tmp_path / "b", "mlp", "stacked", "fedavg", Measured, **{"engine.workers": workers})
    same(expected, found, 0.0)
    assert "engine=sequential from here on: the task cannot run as a stack" in others[0].pop("notes")[0]
    rows[0].pop("notes", None)
    assert rows == others and 0 < rows[0]["train/accuracy"] < 1


class Locked(Task):
    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.handle = iter([1])  # like an open file: cannot be copied

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("cannot copy a handle")


def test_a_task_that_cannot_be_copied_trains_on_one_thread(tmp_path: Any) -> None:
    expected, _ = run(tmp_path / "a", "mlp", "sequential", "fedavg", Locked)
    found, rows = run(tmp_path / "b", "mlp", "sequential", "fedavg", Locked, **{"engine.workers": 2})
    same(expected, found, 0.0)
    assert "Locked cannot be copied" in rows[0]["notes"][0]


class Failing(Task):
    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        if len(batch[1]) == 1:
            raise ValueError("this batch is wrong")
        return super().training_step(batch, batch_idx)


def test_a_failure_on_a_thread_names_client_and_step(tmp_path: Any) -> None:
    with pytest.raises(Exception, match=r"client \d, local step \d: ValueError: this batch is wrong"):
        run(tmp_path / "a", "mlp", "sequential", "fedavg", Failing, **{"engine.workers": 2})


def test_threads_leave_torch_s_number_of_threads_as_it_was(tmp_path: Any) -> None:
    before = torch.get_num_threads()
    run(tmp_path / "a", "mlp", "sequential", "fedavg", **{"engine.workers": 2, "engine.threads": 1})
    assert torch.get_num_threads() == before


class Scheduled(Task):
    """What it computes and logs depends on the number of the batch."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        self.log("number", batch_idx)
        return super().training_step(batch, batch_idx) * (1 + batch_idx)


class Late(Task):
    """It logs something that it did not log before."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        if len(batch[1]) < 3:
            self.log("short", 1.0)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("task", [Task, Scheduled, Late, Itemizing, Noisy, Recurrent, Measured])
def test_any_task_may_be_recorded_when_asked(task: Any, workers: int, tmp_path: Any, monkeypatch: Any) -> None:
    """What cannot be recorded runs as it is; what is logged is the same."""
    monkeypatch.setattr(trace, "_ENOUGH", 1)
    kept: list[Any] = []
    made = trace.Traced.__init__

    def init(self: Any, *given: Any) -> None:
        made(self, *given)
        kept.append(self._recorded)

    monkeypatch.setattr(trace.Traced, "__init__", init)
    keys = {"engine.workers": workers}
    expected, rows = run(tmp_path / "a", "dropout", "sequential", "fedmuon", task, **{"engine.compile": "none"})
    found, others = run(tmp_path / "b", "dropout", "sequential", "fedmuon", task, **keys, **{"engine.compile": "trace"})
    same(expected, found, 1e-12)
    repeats = {key[0] for records in kept for key, record in records.items() if record.repeat}
    assert (task in (Itemizing, Measured)) or repeats & {"local step", "gradients"}
    said = [note for row in others for note in row.get("notes", ()) if "cannot be recorded" in note]
    assert len(said) == (task is Itemizing), said
    for one, other in zip(rows, others, strict=True):
        assert {k: v for k, v in other.items() if k != "notes"} == pytest.approx(
            {k: v for k, v in one.items() if k != "notes"}, rel=1e-6
        )


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch replaces its device guard where it finds no device")
def test_torch_s_device_guard_is_replaced_before_a_thread_could(monkeypatch: Any) -> None:
    """By recording, in a thread that ends with the run, it would make torch 2.11 crash when a later run records."""
    threads: list[threading.Thread] = []
    monkeypatch.setattr(torch._C, "_ensureCUDADeviceGuardSet", lambda: threads.append(threading.current_thread()))
    one = Rounds("mlp", algorithm_of("fedavg"), torch.float32, name="sequential", workers=2, compile="none")
    one.run()  # which records nothing
    assert one.engine.lanes is not None and threads == [threading.main_thread()]


class Unnumbered(Task):
    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        return super().training_step(batch, 0)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_training_step_need_not_take_the_number_of_its_batch(engine: str, tmp_path: Any) -> None:
    expected, _ = run(tmp_path / "a", "mlp", engine, "fedavg", Task)
    found, rows = run(tmp_path / "b", "mlp", engine, "fedavg", Unnumbered)
    same(expected, found, 0.0)
    assert "notes" not in rows[0]


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_fault_in_a_recorded_step_names_client_and_step(engine: str, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(trace, "_ENOUGH", 1)
    images, labels = torch.zeros(sum(SIZES), 1, 6, 6), torch.zeros(sum(SIZES), dtype=torch.int64)
    labels[sum(SIZES[:2])] = 7  # of the third client
    keys = {"engine.compile": "trace", "trainer.precision": "32-true", "engine.chunk": 1}
    with pytest.raises(Exception, match=r"round 1: client 2, local step \d: IndexError: Target 7 is out of"):
        run(tmp_path / "a", "mlp", engine, "fedavg", Task, samples=(images, labels), **keys)


class _Interrupted:
    quiet = True

    def train(self, work: Any, broadcast: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        time.sleep(0.05)
        yield from work


def test_an_interruption_while_the_caller_trains_ends_at_once() -> None:
    client = SimpleNamespace(follow=lambda other: None, device=torch.device("cpu"), meanwhile=lambda: None)
    client.trainer = SimpleNamespace(precision_plugin=Precision(), callbacks=[])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "_copied", lambda client: client)
        both = lanes.Lanes(client, lambda copy: _Interrupted(), 2, 1)  # type: ignore[arg-type, return-value]
    alarm = threading.Timer(20, os._exit, (3,))  # a wait that nothing ends would hang
    alarm.start()
    with pytest.raises(KeyboardInterrupt):
        list(both.train(list(range(20)), None))  # type: ignore[arg-type]
    alarm.cancel()
