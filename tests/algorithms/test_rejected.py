"""What is no part of a round is no part of any sum: rejected clients, and slots that no parameter has."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from lightning import LightningModule
from torch import nn

from tests.algorithms.runs import BATCH, COHORT, NETWORKS, ROUNDS, SIZES, Task, fit, judged, lists, samples, start

OTHERS = [0, 1, 3]


@pytest.mark.parametrize("weights", ["samples", "uniform"])
@pytest.mark.parametrize(
    "algorithm, options",
    [("fednova", {}), ("scaffold", {}), ("feddyn", {"mu": 0.01}), ("fedmuon_lmo", {}), ("mimelite", {"beta": 0.2})],
)
def test_a_client_that_sends_nan_and_is_dropped_counts_as_not_chosen(
    algorithm: str, options: Any, weights: str, tmp_path: Any
) -> None:
    images, labels = samples("mlp")
    images[lists(SIZES)[2]] = np.nan
    task = Task(NETWORKS["mlp"]()).double()
    task.network.load_state_dict({name: torch.from_numpy(value) for name, value in start("mlp").items()})
    keys = {
        "rounds": ROUNDS, "federation.cohort": 4, "local.epochs": 1, "local.batch_size": BATCH, "local.lr": 0.02,
        "local.clip": None, "aggregation.nonfinite": "drop", "aggregation.weights": weights,
    }  # fmt: skip
    keys |= {"algorithm.polar.method": "svd"} if algorithm == "fedmuon_lmo" else {}
    x, _, _ = fit(tmp_path / "run", task, (images, labels), lists(SIZES), algorithm, **keys)
    cohort = [OTHERS] * ROUNDS
    expected = judged("mlp", algorithm, cohort=cohort, weights=weights, eta=[0.02] * ROUNDS, **options)
    for name, value in expected.x.items():
        np.testing.assert_allclose(x[name], value, rtol=0, atol=1e-9)


class Bowl(LightningModule):
    """|w - c|^2 / 2 over targets c; a coordinate that is not finite breaks the loss and the gradient of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3))

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return ((self.w - batch[0]) ** 2).sum(1).mean() / 2


@pytest.mark.parametrize(
    "algorithm, own, mean",
    [
        ("scaffold", "own_control", "control"),
        ("feddyn", "correction", "mean_correction"),
        ("fedmuon_lmo", "momentum", "control"),
    ],
)
def test_what_a_clipped_client_keeps_stays_in_step_with_the_servers_mean(
    algorithm: str, own: str, mean: str, tmp_path: Any
) -> None:
    targets = np.random.default_rng(0).standard_normal((6, 3))
    targets[4, 1] = np.nan
    keys = {"rounds": 3, "federation.cohort": 3, "local.steps": 1, "local.batch_size": 2, "local.lr": 0.1}
    keys |= {"local.clip": None, "aggregation.nonfinite": "clip", "aggregation.weights": "uniform"}
    _, states, result = fit(tmp_path / "run", Bowl(), (targets,), lists((2, 2, 2)), algorithm, **keys)
    saved = torch.load(result.path / "checkpoints" / "last.ckpt", weights_only=False)["federation"]["clients"]
    kept = np.stack([saved[str(client)][own]["w"].numpy() for client in range(3)])
    assert kept[2, 1] == 0 and np.abs(kept[2, [0, 2]]).min() > 0 and np.abs(states[mean]["w"]).min() > 0
    np.testing.assert_allclose(states[mean]["w"], kept.mean(0), rtol=0, atol=1e-12)


class Shift(nn.Module):
    """A network whose only parameter is a vector: nothing for Muon, so that no momentum is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(4))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return (images + self.shift)[:, :3]


def test_fedmuon_without_matrices_sends_no_momentum(tmp_path: Any) -> None:
    keys = {"rounds": 2, "federation.cohort": COHORT, "local.steps": 1, "local.batch_size": BATCH}
    x, states, result = fit(tmp_path / "run", Task(Shift()), samples("mlp"), lists(SIZES), "fedmuon", **keys)
    assert np.abs(x["shift"][:3]).min() > 0 and states["momentum"] == {}
    rows = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    assert [(row["comm/up_bytes"], row["comm/down_bytes"]) for row in rows] == [(3 * 8 * 4, 3 * 8 * 8)] * 2
