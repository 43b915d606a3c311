"""Compressed messages, up and down, against the independent float64 NumPy computation in tests/reference."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from fedmuon.randomness import torch_seed
from tests.algorithms.runs import ROUNDS, SEED, federated, judged
from tests.reference import Coding, Traffic

MUON = {"algorithm.adamw.lr": 0.02, "algorithm.polar.method": "svd", "local.lr": 0.05}
JUDGED = {"eta": [0.05] * 3, "eta_vec": [0.02] * 3, "beta": 0.95, "beta2": 0.999}


def draws(direction: str, round: int, client: int) -> Any:
    """The documented stream of a message; which numbers are drawn is no part of the equations."""
    generator = torch.Generator().manual_seed(torch_seed(SEED, f"quantize {direction}", round, client))
    return lambda shape: torch.rand(shape, generator=generator, dtype=torch.float64).numpy()


def link(direction: str, coding: Coding) -> dict[str, Any]:
    if coding.method == "none":
        return {}
    key, states = f"compression.{direction}", ["momentum"] if coding.states == ("M",) else None
    given = {f"{key}.method": coding.method, f"{key}.error_feedback": coding.feedback, f"{key}.states": states}
    amount = {"svd": {f"{key}.ratio": coding.ratio}, "topk": {f"{key}.share": coding.share}}
    return given | amount.get(coding.method, {})


SVD, TOPK = {"method": "svd", "ratio": 0.3}, {"method": "topk", "share": 0.2}
# name: algorithm, up, down
CASES = {
    # not of Muon's x: the singular values of a single step are all equal, so that its best approximation is any
    "svd up and down, fedavg": ("fedavg", Coding(**SVD), Coding(**SVD)),
    "svd of momenta up, of all down": ("fedmuon", Coding(**SVD, states=("M",)), Coding(**SVD)),
    "svd without error feedback": ("fedavg", Coding(**SVD, feedback=False), Coding(**SVD, feedback=False)),
    "topk up and down": ("fedmuon", Coding(**TOPK), Coding(**TOPK)),
    "topk up": ("fedmuon", Coding(**TOPK), Coding()),
    "topk up and down, fedavg": ("fedavg", Coding(**TOPK), Coding(**TOPK)),
    "topk without error feedback": ("fedavg", Coding(**TOPK, feedback=False), Coding(**TOPK, feedback=False)),
    "quantize up and down": ("fedmuon", Coding("quantize"), Coding("quantize")),
    "quantize without error feedback": ("fedavg", *[Coding("quantize", feedback=False)] * 2),
    "bf16 up and down": ("fedmuon", Coding("bf16"), Coding("bf16")),
    "quantize up, svd down": ("fedmuon", Coding("quantize"), Coding(**SVD)),
}  # fmt: skip


@pytest.mark.parametrize("network", ["mlp", "conv"])
@pytest.mark.parametrize("name", CASES)
def test_three_rounds_agree_with_the_judge(name: str, network: str, tmp_path: Any) -> None:
    algorithm, up, down = CASES[name]
    overrides = {**(MUON if algorithm == "fedmuon" else {"local.lr": 0.1}), **link("up", up), **link("down", down)}
    x, states, _ = federated(tmp_path / "run", network, algorithm, **overrides)
    options = JUDGED if algorithm == "fedmuon" else {"eta": [0.1] * ROUNDS}
    expected = judged(network, algorithm, traffic=Traffic(up, down, draws), **options)
    plain = judged(network, algorithm, **options)
    assert any(np.abs(plain.x[n] - expected.x[n]).max() > 1e-5 for n in x), "compression changed nothing"
    close(x, expected.x)
    close(states["update"], expected.D)
    if algorithm == "fedmuon":
        close(states["delta_g"], expected.G)
        close(states["momentum"], expected.Mbar)


@pytest.mark.parametrize("network", ["mlp", "conv"])
def test_fedmuon_svd_agrees_with_the_judge(network: str, tmp_path: Any) -> None:
    """As published: only the momenta that go up, rank at least 1, what is left out is lost."""
    x, states, result = federated(tmp_path / "run", network, "fedmuon_svd", **MUON)
    coding = Coding("svd", ratio=0.05, feedback=False, states=("M",))
    expected = judged(network, "fedmuon", traffic=Traffic(up=coding), **JUDGED)
    assert np.abs(judged(network, "fedmuon", **JUDGED).x["0.weight"] - expected.x["0.weight"]).max() > 1e-5
    close(x, expected.x)
    close(states["momentum"], expected.Mbar)
    (row, *_) = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    numbers, ranks_one = (43, (4 + 5 + 1) + (3 + 5 + 1)) if network == "mlp" else (95, (2 + 9 + 1) + (3 + 24 + 1))
    matrices = 35 if network == "mlp" else 90
    assert row["comm/up_bytes"] == 3 * 8 * (numbers + ranks_one)
    assert row["comm/up_bytes_before"] == 3 * 8 * (numbers + matrices)
    assert row["comm/down_bytes"] == 3 * 8 * (2 * numbers + matrices) and "comm/down_bytes_before" not in row


def close(actual: Any, expected: Any) -> None:
    assert set(actual) == set(expected) != set()
    for name, value in actual.items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("engine", ["stacked", "sequential"])
def test_engines_and_chunks_see_the_same_messages(engine: str, tmp_path: Any) -> None:
    keys = {**MUON, **link("up", Coding("quantize")), **link("down", Coding(**TOPK))}
    one, _, _ = federated(tmp_path / "one", "mlp", "fedmuon", **keys)
    other, _, _ = federated(tmp_path / "other", "mlp", "fedmuon", **keys, **{"engine": engine, "engine.chunk": 2})
    close(other, one)
