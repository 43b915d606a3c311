"""Whole runs on quadratics whose optimum is known on paper: each test would fail if the method were FedAvg."""

from typing import Any

import numpy as np
import pytest
import torch
from lightning import LightningModule
from torch import Tensor, nn

from tests.algorithms.runs import fit, lists

CENTRES = np.array([[3.0, -1.0], [-5.0, 2.0]])  # b_i
SIZES = (2, 6)
SHARES = {"samples": np.array([0.25, 0.75]), "uniform": np.array([0.5, 0.5])}


class Quadratic(LightningModule):
    """f_i(x) = h_i / 2 ||x - b_i||^2; every sample of a client is (h_i, b_i), so that no batch is noisy."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(2))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        h, b = batch[0][:, 0], batch[0][:, 1:]
        return (h * (self.x - b).square().sum(1)).mean() / 2


def limit(path: Any, algorithm: str, weights: str, curvatures: Any, rounds: int, **overrides: Any) -> np.ndarray:
    """x after so many rounds of both clients."""
    rows = np.concatenate([np.tile([h, *b], (n, 1)) for h, b, n in zip(curvatures, CENTRES, SIZES, strict=True)])
    keys = {"rounds": rounds, "aggregation.weights": weights, **overrides}
    x, _, _ = fit(path, Quadratic(), (rows, np.zeros(len(rows), np.int64)), lists(SIZES), algorithm, **keys)
    return x["x"]


def weighted(weights: np.ndarray) -> np.ndarray:
    """The mean of the centres: where a sum of quadratics with these weights is flat."""
    return weights @ CENTRES / weights.sum()


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_scaffold_and_feddyn_reach_the_optimum_that_fedavg_misses(weights: str, tmp_path: Any) -> None:
    h, eta, K = np.array([1.0, 3.0]), 0.1, 5
    p = SHARES[weights]
    optimum, drifted = weighted(p * h), weighted(p * (1 - (1 - eta * h) ** K))
    assert np.abs(drifted - optimum).max() > 0.3
    common = {"local.lr": eta, "local.steps": K, "local.batch_size": 8, "local.clip": None}
    scaffold = limit(tmp_path / "scaffold", "scaffold", weights, h, 20, **common)
    feddyn = limit(tmp_path / "feddyn", "feddyn", weights, h, 25, **common, **{"algorithm.mu": 2.0})
    fedavg = limit(tmp_path / "fedavg", "fedavg", weights, h, 20, **common)
    np.testing.assert_allclose(scaffold, optimum, rtol=0, atol=1e-6)
    np.testing.assert_allclose(feddyn, optimum, rtol=0, atol=1e-6)
    np.testing.assert_allclose(fedavg, drifted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_fednova_approaches_the_optimum_as_the_rate_falls_and_fedavg_does_not(weights: str, tmp_path: Any) -> None:
    h, K, p = np.ones(2), np.array([2, 6]), SHARES[weights]  # batches of one, one epoch: K_i = n_i
    optimum = weighted(p)
    distance: dict[str, list[float]] = {"fednova": [], "fedavg": []}
    for eta, rounds in ((0.2, 20), (0.05, 50)):
        drift = 1 - (1 - eta) ** K
        common = {"local.lr": eta, "local.epochs": 1, "local.batch_size": 1}
        for algorithm, pull in (("fednova", drift / K), ("fedavg", drift)):
            x = limit(tmp_path / f"{algorithm}{eta}", algorithm, weights, h, rounds, **common)
            np.testing.assert_allclose(x, weighted(p * pull), rtol=0, atol=1e-3)
            distance[algorithm].append(float(np.linalg.norm(x - optimum)))
    assert distance["fednova"][1] < distance["fednova"][0] / 3
    assert distance["fednova"][1] < 0.5 < 0.9 < min(distance["fedavg"])
