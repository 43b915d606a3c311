"""What a task logs inside another module: weighted means, torchmetrics, nothing beyond a reset."""

import pytest
import torch
from lightning import LightningModule
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from fedmuon.recorder import Recorder


def test_numbers_are_averaged_by_batch_size():
    task = LightningModule()
    recorder = Recorder(task)
    task.log("a", 1.0, batch_size=3, prog_bar=True, on_step=True, sync_dist=True)
    task.log("a", torch.tensor(5.0), batch_size=1)
    recorder.batch_size = 2
    task.log_dict({"b": 1, "c": torch.tensor(2)}, prog_bar=True)
    task.log_dict({"b": 4, "c": torch.tensor(3)}, batch_size=4)
    assert recorder.means() == {"a": 2.0, "b": 3.0, "c": pytest.approx(16 / 6)}
    recorder.reset()
    assert recorder.means() == {}


def test_float_sums_do_not_lose_small_terms():
    recorder = Recorder(LightningModule())
    for _ in range(10_000):
        recorder.log("x", 0.1)
    assert recorder.means()["x"] == pytest.approx(0.1, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int64])
def test_sums_and_weights_do_not_depend_on_the_values_dtype(dtype):
    recorder = Recorder(LightningModule())
    for value in range(1000):
        recorder.log("x", torch.tensor(value % 2, dtype=dtype), batch_size=3)
    assert recorder.means() == {"x": 0.5}
    assert recorder.take()["x"].tolist() == [1500, 3000]


def test_metrics_are_computed_once_and_reset():
    recorder = Recorder(LightningModule())
    accuracy, mean = MulticlassAccuracy(3, average="micro"), MeanMetric()
    for predicted, label in (([0, 1, 2, 2], [0, 1, 2, 0]), ([1], [0])):
        accuracy.update(torch.tensor(predicted), torch.tensor(label))
        recorder.log("accuracy", accuracy)
        mean.update(float(len(label)))
        recorder.log("size", mean)
    assert recorder.means() == {"accuracy": pytest.approx(0.6), "size": 2.5}
    recorder.reset()
    accuracy.update(torch.tensor([0]), torch.tensor([0]))
    recorder.log("accuracy", accuracy)
    assert recorder.means() == {"accuracy": 1.0}


def test_the_graph_is_not_kept():
    recorder = Recorder(LightningModule())
    w = torch.ones(1, requires_grad=True)
    recorder.log("loss", (w * 2).sum())
    assert not any(total.requires_grad for total in recorder._sums.values())
    assert recorder.means() == {"loss": 2.0}
