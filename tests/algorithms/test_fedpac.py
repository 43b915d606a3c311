"""FedPAC (arXiv 2602.19271), a composition: moments are shared and come back warm, steps are mixed with G."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.algorithms.runs import NETWORKS, ROUNDS, SIZES, Task, federated, fit, judged, samples, start
from tests.reference import Coding, Traffic
from tests.reference import federation as judge

B1, B2, EPS, DECAY, A = 0.9, 0.999, 1e-8, 0.01, 0.5


def client(job: Any, shared: Any, kept: Any) -> Any:
    """AdamW from the server's m and v, both corrected by the steps of all rounds; x -= eta [(1-a) d + a G]."""
    x, m, v = job.x0, shared["m"], shared["v"]
    for t, batch in enumerate(job.batches, start=int(shared["steps"]["count"]) + 1):
        g = job.gradient(x, batch)
        m = {n: B1 * m[n] + (1 - B1) * g[n] for n in x}
        v = {n: B2 * v[n] + (1 - B2) * g[n] ** 2 for n in x}
        d = {n: m[n] / (1 - B1**t) / (np.sqrt(v[n] / (1 - B2**t)) + EPS) for n in x}
        x = job.step(x, {n: (1 - A) * d[n] + A * shared["G"][n] for n in x})
    return x, {"m": m, "v": v}


def server(result: Any, state: Any) -> Any:
    """x += D; m and v are the clients' means; the step count grows by the largest K_i."""
    means = {key: result.mean(result.returned(key)) for key in ("m", "v")}
    D = result.mean(result.change(state["x"]))
    count = {"count": state["steps"]["count"] + max(result.K.values())}
    return state | means | {"x": {n: state["x"][n] + D[n] for n in D}, "steps": count}


@pytest.mark.parametrize("compression", ["none", "bf16"])
@pytest.mark.parametrize("weights", ["samples", "uniform"])
@pytest.mark.parametrize("network", ["mlp", "conv"])
def test_fedpac_with_adamw_agrees_with_an_independent_computation(
    network: str, weights: str, compression: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(judge.ALGORITHMS, "fedpac", (client, server))
    keys = {"local.lr": 0.01, "aggregation.weights": weights}
    keys |= {f"compression.{way}.method": compression for way in ("up", "down")}
    x, states, _ = federated(tmp_path / "run", network, "fedpac", **keys)
    traffic = Traffic(Coding(compression), Coding(compression))
    expected = judged(network, "fedpac", weights=weights, eta=[0.01] * ROUNDS, decay=DECAY, traffic=traffic)
    for name, value in expected.x.items():
        np.testing.assert_allclose(x[name], value, rtol=0, atol=1e-9)
        np.testing.assert_allclose(states["delta_g"][name], expected.G[name], rtol=0, atol=1e-9)
        for moment in ("m", "v"):
            np.testing.assert_allclose(states[moment][name], expected.server[moment][name], rtol=0, atol=1e-9)


def alone(path: Any, algorithm: str, rounds: int, steps: int, **overrides: Any) -> Any:
    """x of one client that trains on all samples at once."""
    task = Task(NETWORKS["mlp"]()).double()
    task.network.load_state_dict({name: torch.from_numpy(value) for name, value in start("mlp").items()})
    keys = {"rounds": rounds, "local.steps": steps, "local.batch_size": sum(SIZES), "local.lr": 0.01, **overrides}
    return fit(path, task, samples("mlp"), [list(range(sum(SIZES)))], algorithm, **keys)[0]


def test_adamw_of_one_client_that_shares_its_moments_is_torchs_without_a_break(tmp_path: Any) -> None:
    federal = alone(tmp_path / "run", "fedpac", 3, 3, **{"algorithm.align": False})
    task = Task(NETWORKS["mlp"]()).double()
    task.network.load_state_dict({name: torch.from_numpy(value) for name, value in start("mlp").items()})
    optimizer = torch.optim.AdamW(task.parameters(), lr=0.01, betas=(B1, B2), eps=EPS, weight_decay=DECAY)
    batch = tuple(map(torch.from_numpy, samples("mlp")))
    for _ in range(9):
        optimizer.zero_grad()
        task.training_step(batch, 0).backward()
        optimizer.step()
    for name, p in task.network.named_parameters():
        np.testing.assert_allclose(federal[name], p.detach().numpy(), rtol=0, atol=1e-12)


def test_muon_of_one_client_that_shares_all_its_state_is_one_long_round(tmp_path: Any) -> None:
    shares = {"algorithm.share": ["momentum", "m", "v"], "algorithm.align": False}
    three = alone(tmp_path / "three", "fedpac_muon", 3, 3, **shares)
    one = alone(tmp_path / "one", "local_muon", 1, 9)
    broken = alone(tmp_path / "broken", "fedpac_muon", 3, 3, **{"algorithm.align": False})  # vectors start afresh
    for name, value in one.items():
        np.testing.assert_allclose(three[name], value, rtol=0, atol=1e-12)
        assert np.abs(broken[name] - value).max() > 1e-6
