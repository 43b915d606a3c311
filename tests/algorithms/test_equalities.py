"""Methods that are the same at certain constants are the same bit for bit."""

from typing import Any

import numpy as np
import pytest
import torch

from fedmuon.errors import UsageError
from tests.algorithms.runs import NETWORKS, SIZES, Task, federated, fit, lists, samples, start

PAIRS: dict[str, tuple[str, dict[str, Any], str]] = {
    "fedprox without its pull is fedavg": ("fedprox", {"algorithm.mu": 0.0}, "fedavg"),
    "fedcm without G is fedavg": ("fedcm", {"algorithm.alpha": 0.0}, "fedavg"),
    "fedcm that is not aligned is fedavg": ("fedcm", {"algorithm.align": False}, "fedavg"),
    "mimelite without momentum is fedavg": ("mimelite", {"algorithm.beta": 0.0}, "fedavg"),
    "fedavgm without momentum is fedavg": ("fedavgm", {"server.momentum": 0.0}, "fedavg"),
    "fedmuon without alignment and warm start is local_muon": (
        "fedmuon", {"algorithm.align": False, "algorithm.warm_start": False}, "local_muon",
    ),
    "muloco that forgets, with a plain server, is local_muon": (
        "muloco", {"algorithm.reset_momentum": True, "server": "sgd"}, "local_muon",
    ),
    "fedpac with muon is fedmuon": ("fedpac_muon", {}, "fedmuon"),
    "fedpac that shares nothing and is not aligned is local_adamw": (
        "fedpac", {"algorithm.share": [], "algorithm.align": False}, "local_adamw",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_equal_bit_for_bit(name: str, tmp_path: Any) -> None:
    algorithm, overrides, other = PAIRS[name]
    rate = {"local.lr": 0.03}
    left, _, _ = federated(tmp_path / "left", "conv", algorithm, **rate, **overrides)
    right, _, _ = federated(tmp_path / "right", "conv", other, **rate)
    for parameter, value in right.items():
        np.testing.assert_array_equal(left[parameter], value)


def test_the_equalities_above_are_not_trivial(tmp_path: Any) -> None:
    names = ["fedavg", "fedprox", "fedcm", "mimelite", "fedmuon", "local_muon", "muloco", "fedpac", "local_adamw"]
    runs = {name: federated(tmp_path / name, "mlp", name, **{"local.lr": 0.03})[0]["0.weight"] for name in names}
    for name, value in runs.items():
        assert all(not np.array_equal(value, other) for key, other in runs.items() if key != name), name


def test_fednova_with_equal_steps_is_fedavg(tmp_path: Any) -> None:
    steps = {"local.steps": 3, "local.epochs": None}
    left, _, _ = federated(tmp_path / "fednova", "mlp", "fednova", **steps)
    right, _, _ = federated(tmp_path / "fedavg", "mlp", "fedavg", **steps)
    for parameter, value in right.items():
        np.testing.assert_allclose(left[parameter], value, rtol=0, atol=1e-12)


def test_a_server_of_rate_one_adds_the_weighted_mean_of_the_changes(tmp_path: Any) -> None:
    """x + sum p_i (x_i - x), where each x_i - x comes from a run in which the others have no samples."""
    indices = lists(SIZES)
    x0 = {name: torch.from_numpy(value) for name, value in start("mlp").items()}
    change = {name: torch.zeros_like(value) for name, value in x0.items()}

    def run(name: str, partition: list[list[int]]) -> Any:
        task = Task(NETWORKS["mlp"]()).double()
        task.network.load_state_dict(x0)
        settings = {"rounds": 1, "federation.cohort": 4, "local.steps": 3, "local.batch_size": 4}
        return fit(tmp_path / name, task, samples("mlp"), partition, "fedavg", **settings)

    for client, n in enumerate(SIZES):
        alone = [one if other == client else [] for other, one in enumerate(indices)]
        _, states, _ = run(f"alone{client}", alone)
        for name, total in change.items():
            total.add_(torch.from_numpy(states["update"][name]), alpha=n / sum(SIZES))
    together, _, _ = run("together", indices)
    for name, value in x0.items():
        np.testing.assert_array_equal(together[name], (value + change[name]).numpy())


@pytest.mark.parametrize(
    "algorithm, overrides, message",
    [
        ("fedpac", {"algorithm.share": ["w"]}, "algorithm.share=w: must be among m, v"),
        ("fedmuon", {"algorithm.share": ["momenta"]}, "did you mean 'momentum'"),
        ("muloco", {"algorithm.warm_start": True}, "algorithm.reset_momentum=false: .*algorithm.warm_start=false"),
        ("feddyn", {"algorithm.mu": 0.0}, "algorithm.mu=0.0: must be a finite number, above 0"),
    ],
)
def test_what_does_not_fit_is_refused(algorithm: str, overrides: Any, message: str, tmp_path: Any) -> None:
    with pytest.raises(UsageError, match=message):
        federated(tmp_path / "run", "mlp", algorithm, **overrides)
