"""Rounds of algorithm=fedmuon_published and local_muon_published are what the authors' code computes."""

from typing import Any

import numpy as np
import pytest
import torch

from fedmuon.cli import checked_jobs
from fedmuon.data import batches
from fedmuon.schedule import factor
from tests.algorithms.runs import BATCH, NETWORKS, SEED, SIZES, Task, cohorts, fit, lists, samples, start
from tests.paper.published_code import Code, run
from tests.reference import conv, mlp

STEPS = 3
MODELS = {"mlp": mlp, "conv": conv}


def settings(algorithm: str, model: str) -> dict[str, Any]:
    """What paper=published sets for a method on a model, as overrides."""
    (job,) = checked_jobs(["paper=published", f"algorithm={algorithm}", f"model={model}", "partition.path=lists.npz"])
    rule = job.saved.algorithm
    return {
        "local.lr": job.saved.local.lr,
        "local.clip": job.saved.local.clip,
        "algorithm.lr_scale": rule.lr_scale,
        "algorithm.weight_decay": rule.weight_decay,
        "algorithm.adamw.weight_decay": rule.adamw.weight_decay,
    }


def product(path: Any, network: str, algorithm: str, rounds: int, **overrides: Any) -> tuple[dict, dict]:
    """(x, mean M) by the package; every client takes three steps, rates follow the published cosine."""
    task = Task(NETWORKS[network]()).double()
    task.network.load_state_dict({name: torch.from_numpy(value) for name, value in start(network).items()})
    given = {
        "rounds": rounds, "federation.cohort": 3, "local.steps": STEPS, "local.batch_size": BATCH,
        "local.schedule": "cosine", "local.schedule_rounds": 4, "aggregation.weights": "uniform",
        "algorithm.polar.dtype": "float64", **overrides,
    }  # fmt: skip
    x, states, _ = fit(path, task, samples(network), lists(SIZES), algorithm, **given)
    return x, states.get("momentum", {})


def judged(network: str, rounds: int, code: Code) -> tuple[dict, dict]:
    X, y = samples(network)
    rows = lists(SIZES)

    def gradient(x: dict, batch: np.ndarray) -> dict:
        return MODELS[network](x, X[batch], y[batch])[1]

    work = [
        [
            (batches(SEED, r, c, samples=np.array(rows[c]), batch_size=BATCH, steps=STEPS), gradient)
            for c in cohorts(rounds)[r]
        ]
        for r in range(rounds)
    ]
    factors = [factor("cosine", r, rounds=4) for r in range(rounds)]
    return run(start(network), work, factors, code)


CASES = {
    "fedmuon_published": {"resnet18": Code(lr=0.03, muon=0.5), "vit_tiny": Code(lr=3e-4, muon=10)},
    "local_muon_published": {
        "resnet18": Code(lr=0.03, muon=0.5, momentum=0.95, aligned=False),
        "vit_tiny": Code(lr=3e-4, muon=10, momentum=0.95, aligned=False),
    },
}


@pytest.mark.parametrize(
    "network, model, rounds", [("mlp", "resnet18", 1), ("conv", "resnet18", 3), ("mlp", "vit_tiny", 2)]
)
@pytest.mark.parametrize("algorithm", CASES)
def test_rounds_are_those_of_the_published_code(
    algorithm: str, network: str, model: str, rounds: int, tmp_path: Any
) -> None:
    """Up to the 1e-7 that their code adds to a norm; without it to rounding errors."""
    code, clip = CASES[algorithm][model], 0.3  # gradients are small here: 10 would never clip
    x, momentum = product(
        tmp_path / "a", network, algorithm, rounds, **{**settings(algorithm, model), "local.clip": clip}
    )
    exact = Code(**{**vars(code), "clip": clip, "eps": 0.0})
    want, M = judged(network, rounds, exact)
    before = start(network)
    for name, value in want.items():
        moved = np.abs(value - before[name]).max()
        np.testing.assert_allclose(x[name], value, rtol=0, atol=1e-9 * moved)
        if name in momentum:
            np.testing.assert_allclose(momentum[name], M[name], rtol=0, atol=1e-9 * np.abs(M[name]).max())
    assert settings(algorithm, model)["local.clip"] == code.clip
    literal, _ = judged(network, rounds, Code(**{**vars(exact), "eps": code.eps}))
    for name, value in literal.items():
        np.testing.assert_allclose(x[name], value, rtol=0, atol=1e-2 * np.abs(value - before[name]).max())


def test_the_preset_alone_decays_twice_as_fast_and_bfloat16_is_close(tmp_path: Any) -> None:
    """Its weight_decay is the 0.01 of their code, which multiplies a rate that has the factor 1 - alpha already."""
    code = Code(lr=0.03, muon=0.5, decay=0.02, eps=0.0)
    x, _ = product(tmp_path / "a", "mlp", "fedmuon_published", 2)
    want, _ = judged("mlp", 2, code)
    for name, value in want.items():
        np.testing.assert_allclose(x[name], value, rtol=0, atol=1e-9)
    half, _ = product(tmp_path / "b", "mlp", "fedmuon_published", 2, **{"algorithm.polar.dtype": "bfloat16"})
    before = start("mlp")
    for name, value in want.items():
        assert np.linalg.norm(half[name] - value) < 0.15 * np.linalg.norm(value - before[name])
    assert any((half[name] != x[name]).any() for name in want)
