"""A whole run whose evaluation is captured, on a CPU by recordings that stand for CUDA graphs."""

from typing import Any

import pytest
import torch

import fedmuon
from fedmuon import devices
from fedmuon.engines import graph
from tests.engines.recorded import Recorded
from tests.system.runs import rows


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_run_logs_what_it_logs_without_graphs(tiny: list[str], monkeypatch: Any) -> None:
    """Global and client evaluation, with a short last batch, after every round."""
    made: list[Any] = []

    class Graphs(Recorded):
        def __init__(self, device: Any) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(graph, "CudaGraphs", Graphs)
    monkeypatch.setattr(devices, "check", lambda *_: None)
    same = [*tiny, "trainer.precision=64-true", "evaluation.batch_size=7", "data.client_validation=0.3"]
    same += ["trainer.accelerator=auto", "evaluation.clients_every=1"]
    expected, found = (rows(fedmuon.run([*same, f"engine={name}"]).path) for name in ("sequential", "graph"))
    names = [key for key in expected[0] if key.startswith(("val/", "test/", "clients/"))]
    assert len(names) > 8
    for one, two in zip(expected, found, strict=True):
        assert {key: two[key] for key in names} == pytest.approx({key: one[key] for key in names}, abs=1e-7)
        assert two["test/loss"] == pytest.approx(one["test/loss"], abs=1e-10)
    assert made[0].replays > 50
