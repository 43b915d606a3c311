"""Every algorithm, through the public API, against the independent float64 NumPy computation in tests/reference."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedmuon
from fedmuon.data import batches
from tests.reference import conv, conv_parameters, mlp, mlp_parameters, simulate

SIZES, COHORT, ROUNDS, SEED, BATCH = (7, 12, 4), [0, 1, 2], 2, 3, 4  # K = 2, 3, 1 local steps
OFFSETS = [0, 7, 19, 23]
NETWORKS = {
    "mlp": lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
    "conv": lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3)),
}


class Task(LightningModule):
    def __init__(self, network: str) -> None:
        super().__init__()
        self.network = NETWORKS[network]()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return cross_entropy(self.network(batch[0]), batch[1])


def start(network: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return mlp_parameters(rng, 4, 5, 3) if network == "mlp" else conv_parameters(rng, 2, 3, 4, 3)


def federated(path: Any, network: str, x0: dict[str, np.ndarray], data: Any, algorithm: str, **overrides: Any) -> Any:
    """x, G and Mbar after two rounds of the product."""
    task = Task(network).double()
    task.network.load_state_dict({name: torch.from_numpy(value) for name, value in x0.items()})
    result = fedmuon.federate(
        task,
        tuple(map(torch.from_numpy, data)),
        partition=[list(range(a, b)) for a, b in pairwise(OFFSETS)],
        algorithm=algorithm,
        rounds=ROUNDS,
        **{
            "seed": SEED, "logger": "none", "run_dir": str(path), "local.epochs": 1, "local.batch_size": BATCH,
            "trainer.precision": "64-true", "trainer.accelerator": "cpu",
        } | overrides,
    )  # fmt: skip
    state = torch.load(result.path / "checkpoints" / "last.ckpt", weights_only=False)["federation"]["server"]
    states = {key: tensors for key, tensors in state.items() if isinstance(tensors, dict)}
    bare = {key: {n.removeprefix("network."): t.numpy() for n, t in tensors.items()} for key, tensors in states.items()}
    return {name: p.detach().numpy() for name, p in task.network.named_parameters()}, bare


def judged(network: str, x0: dict[str, np.ndarray], data: Any, algorithm: str, **options: Any) -> Any:
    """The same two rounds by the judge."""
    clients = [(data[0][a:b], data[1][a:b]) for a, b in pairwise(OFFSETS)]
    work = [
        [batches(SEED, r, c, samples=n, batch_size=BATCH, epochs=1) for c, n in enumerate(SIZES)] for r in range(ROUNDS)
    ]
    model = mlp if network == "mlp" else conv
    return simulate(algorithm, x0, clients, ROUNDS, batches=work, cohort=[COHORT] * ROUNDS, model=model, **options)[-1]


MUON = {"algorithm.adamw.lr": 0.02, "algorithm.polar.method": "svd", "local.lr": 0.05}
JUDGED_MUON = {"eta": [0.05] * 2, "eta_vec": [0.02] * 2, "beta": 0.95, "beta2": 0.999}
JUDGED_ADAM = {"server": "adam", "server_lr": 0.01, "server_beta1": 0.9, "server_beta2": 0.99, "tau": 1e-3}
PUBLISHED = {"algorithm.polar.method": "svd", "algorithm.polar.dtype": None, "local.lr": 0.05, "local.clip": 0.3}
JUDGED_PUBLISHED = {
    "eta": [0.05] * 2, "eta_vec": [0.05] * 2, "beta": 0.98, "ema": True, "nesterov": True, "shape_scale": "kernel",
    "decay": 0.01, "clip": 0.3, "muon_multiplier": 0.5, "beta2": 0.95, "eps": 1e-10,
}  # fmt: skip


def sgd(judged: str = "fedavg", algorithm: str = "fedavg", product: Any = None, judge: Any = None) -> Any:
    return algorithm, {"local.lr": 0.1, **(product or {})}, judged, {"eta": [0.1] * 2, **(judge or {})}


def muon(product: Any = None, judge: Any = None, algorithm: str = "fedmuon") -> Any:
    return algorithm, {**MUON, **(product or {})}, algorithm, {**JUDGED_MUON, **(judge or {})}


# name: algorithm, overrides of the product, the judge's name for it, the judge's options
CASES: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "fedavg": sgd(),
    "fedavg_clip_decay": sgd(
        product={"local.clip": 0.3, "algorithm.weight_decay": 0.1}, judge={"clip": 0.3, "decay": 0.1}
    ),
    "fedadam": sgd("fedadam", "fedadam", judge=JUDGED_ADAM),
    "local_muon": muon(algorithm="local_muon"),
    "fedmuon": muon(),
    "fedmuon_other_constants": muon({"algorithm.alpha": 0.2, "algorithm.beta": 0.7}, {"alpha": 0.2, "beta": 0.7}),
    "fedmuon_no_align": muon({"algorithm.align": False}, {"align": False}),
    "fedmuon_cold": muon({"algorithm.warm_start": False}, {"warm_start": False}),
    "fedmuon_no_polar": muon({"algorithm.orthogonalize": False}, {"orthogonalize": False}),
    "fedmuon_mix_first": muon({"algorithm.mix_order": "mix_then_polar"}, {"mix_order": "mix_then_polar"}),
    "fedmuon_view_scale": muon({"algorithm.shape_scale": "view"}, {"shape_scale": "view"}),
    "fedmuon_heavy_nesterov": muon({"algorithm.nesterov": True}, {"nesterov": True}),
    "fedmuon_server_adam": muon({"server": "adam"}, JUDGED_ADAM),
    "fedmuon_cosine": muon({"local.schedule": "cosine"}, {"eta": [0.05, 0.025], "eta_vec": [0.02, 0.01]}),
    "fedmuon_published": ("fedmuon_published", PUBLISHED, "fedmuon", JUDGED_PUBLISHED),
}


@pytest.mark.parametrize("weights", ["samples", "uniform"])
@pytest.mark.parametrize("network", ["mlp", "conv"])
@pytest.mark.parametrize("case", CASES)
def test_two_rounds_agree_with_an_independent_computation(case: str, network: str, weights: str, tmp_path: Any) -> None:
    algorithm, overrides, judge, options = CASES[case]
    rng = np.random.default_rng(2)
    shape = (4,) if network == "mlp" else (1, 3, 4)
    data = rng.standard_normal((sum(SIZES), *shape)), rng.integers(0, 3, sum(SIZES))
    x0 = start(network)
    x, state = federated(
        tmp_path / "run", network, x0, data, algorithm, **overrides, **{"aggregation.weights": weights}
    )
    expected = judged(network, x0, data, judge, weights=weights, **options)
    for name, value in expected.x.items():
        assert not np.allclose(value, x0[name]), f"{name} did not move"
        np.testing.assert_allclose(x[name], value, rtol=0, atol=1e-9, err_msg=name)
    for key, figures in (("delta_g", expected.G), ("momentum", expected.Mbar), ("update", expected.D)):
        for name, value in state.get(key, {}).items():
            np.testing.assert_allclose(value, figures[name], rtol=0, atol=1e-9, err_msg=f"{key} {name}")
