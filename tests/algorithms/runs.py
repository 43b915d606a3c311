"""Small federations that the product and the judge in tests/reference both run."""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedmuon
from fedmuon.data import batches
from fedmuon.data.cohort import uniform
from tests.reference import conv, conv_parameters, mlp, mlp_parameters, simulate

SIZES, COHORT, ROUNDS, SEED, BATCH = (7, 12, 4, 9), 3, 3, 7, 4  # K = 2, 3, 1, 3 local steps
NETWORKS = {
    "mlp": lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
    "conv": lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3)),
}
Arrays = dict[str, np.ndarray]


class Task(LightningModule):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return cross_entropy(self.network(batch[0]), batch[1])


def cohorts(rounds: int = ROUNDS) -> list[list[int]]:
    """Three of the four clients, others in every round."""
    return [uniform(SEED, r, len(SIZES), COHORT).tolist() for r in range(rounds)]


def start(network: str) -> Arrays:
    rng = np.random.default_rng(1)
    return mlp_parameters(rng, 4, 5, 3) if network == "mlp" else conv_parameters(rng, 2, 3, 4, 3)


def samples(network: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    shape = (4,) if network == "mlp" else (1, 3, 4)
    return rng.standard_normal((sum(SIZES), *shape)), rng.integers(0, 3, sum(SIZES))


def lists(sizes: Any) -> list[list[int]]:
    """Indices of clients that have so many samples each, one after the other."""
    return [list(range(a, b)) for a, b in pairwise(np.cumsum([0, *sizes]).tolist())]


def fit(path: Any, task: LightningModule, data: Any, partition: Any, algorithm: str, **overrides: Any) -> Any:
    """Train a task in float64; (x, states of the server, Run), the first two by parameter name as arrays."""
    result = fedmuon.federate(
        task.double(),
        tuple(torch.as_tensor(part) for part in data),
        partition=partition,
        algorithm=algorithm,
        **{
            "seed": SEED, "logger": "none", "run_dir": str(path), "checkpoint.every": overrides["rounds"],
            "trainer.precision": "64-true", "trainer.accelerator": "cpu",
        } | overrides,
    )  # fmt: skip
    state = torch.load(result.path / "checkpoints" / "last.ckpt", weights_only=False)["federation"]["server"]
    states = {key: _bare(tensors) for key, tensors in state.items() if isinstance(tensors, dict)}
    return _bare(dict(task.named_parameters())), states, result


def federated(path: Any, network: str, algorithm: str, sizes: Any = SIZES, **overrides: Any) -> Any:
    """Three rounds of the product on one of the NETWORKS."""
    task = Task(NETWORKS[network]()).double()
    task.network.load_state_dict({name: torch.from_numpy(value) for name, value in start(network).items()})
    settings = {"federation.cohort": COHORT, "rounds": ROUNDS, "local.epochs": 1, "local.batch_size": BATCH}
    return fit(path, task, samples(network), lists(sizes), algorithm, **(settings | overrides))


def work(sizes: Any = SIZES) -> list[list[Any]]:
    """The batches of every client in every round."""
    return [
        [batches(SEED, r, c, samples=n, batch_size=BATCH, epochs=1) for c, n in enumerate(sizes)] for r in range(ROUNDS)
    ]


def judged(network: str, algorithm: str, sizes: Any = SIZES, **options: Any) -> Any:
    """The same three rounds by the judge."""
    data = samples(network)
    clients = [(data[0][np.array(own, int)], data[1][np.array(own, int)]) for own in lists(sizes)]
    model = mlp if network == "mlp" else conv
    given = {"batches": work(sizes), "cohort": cohorts(), "model": model, **options}
    return simulate(algorithm, start(network), clients, ROUNDS, **given)[-1]


def _bare(tensors: dict[str, Tensor]) -> Arrays:
    return {name.removeprefix("network."): t.detach().numpy().copy() for name, t in tensors.items()}
