"""Every algorithm, through the public API, against the independent float64 NumPy computation in tests/reference."""

from typing import Any

import numpy as np
import pytest

from fedmuon.config import Stragglers
from fedmuon.data.cohort import uniform
from fedmuon.stragglers import answered
from tests.algorithms.runs import COHORT, ROUNDS, SEED, SIZES, cohorts, federated, judged, start, work

MUON = {"algorithm.adamw.lr": 0.02, "algorithm.polar.method": "svd", "local.lr": 0.05}
NO_POLAR = {"algorithm.orthogonalize": False, "algorithm.adamw.lr": 0.02, "local.lr": 0.05}
JUDGED_MUON = {"eta": [0.05] * 3, "eta_vec": [0.02] * 3, "beta": 0.95, "beta2": 0.999}
JUDGED_ADAM = {"server": "adam", "server_lr": 0.01, "server_beta1": 0.9, "server_beta2": 0.99, "tau": 1e-3}
PUBLISHED = {"algorithm.polar.method": "svd", "algorithm.polar.dtype": None, "local.lr": 0.05, "local.clip": 0.3}
JUDGED_PUBLISHED = {
    "eta": [0.05] * 3, "eta_vec": [0.05] * 3, "beta": 0.98, "ema": True, "nesterov": True, "shape_scale": "kernel",
    "decay": 0.01, "clip": 0.3, "muon_multiplier": 0.5, "beta2": 0.95, "eps": 1e-10,
}  # fmt: skip
CLIPPED, JUDGED_CLIPPED = {"local.clip": 0.3, "algorithm.weight_decay": 0.1}, {"clip": 0.3, "decay": 0.1}


def case(algorithm: str, product: Any = None, judge: Any = None, name: str | None = None, lr: float = 0.1) -> Any:
    return algorithm, {"local.lr": lr, **(product or {})}, name or algorithm, {"eta": [lr] * 3, **(judge or {})}


def muon(product: Any = None, judge: Any = None, algorithm: str = "fedmuon") -> Any:
    return algorithm, {**MUON, **(product or {})}, algorithm, {**JUDGED_MUON, **(judge or {})}


# name: algorithm, overrides of the product, the judge's name for it, the judge's options
CASES: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "fedavg": case("fedavg"),
    "fedavg_clip_decay": case("fedavg", CLIPPED, JUDGED_CLIPPED),
    "fedprox": case("fedprox", judge={"mu": 0.01}),
    "fedprox_strong": case("fedprox", {"algorithm.mu": 2.0, **CLIPPED}, {"mu": 2.0, **JUDGED_CLIPPED}),
    "scaffold": case("scaffold", {"local.clip": None}),
    "scaffold_file": case("scaffold", judge={"clip": 1.0}),
    "scaffold_server_adam": case("scaffold", {"server": "adam", "local.clip": None}, JUDGED_ADAM),
    "scaffold_clip_decay": case("scaffold", CLIPPED, JUDGED_CLIPPED),
    "feddyn": case("feddyn", judge={"mu": 0.01}),
    "feddyn_strong": case("feddyn", {"algorithm.mu": 1.0}, {"mu": 1.0}),
    "fedcm": case("fedcm", judge={"alpha": 0.9}),
    "fednova": case("fednova"),
    "mimelite": case("mimelite", judge={"beta": 0.2}),
    "mimelite_heavy": case("mimelite", {"algorithm.beta": 0.9}, {"beta": 0.9}),
    "mimelite_clip": case("mimelite", {"algorithm.beta": 0.5, "local.clip": 0.3}, {"beta": 0.5, "clip": 0.3}),
    "fedavgm": case("fedavgm", judge={"server_momentum": 0.9}),
    "fedadam": case("fedadam", judge=JUDGED_ADAM),
    "fedyogi": case("fedyogi", judge={**JUDGED_ADAM, "server": "yogi"}),
    "fedadagrad": case("fedadagrad", judge={**JUDGED_ADAM, "server": "adagrad", "server_beta1": 0.0}),
    "local_adamw": case("local_adamw", judge={"decay": 0.01}, lr=0.01),
    "fedadamw": case("fedadamw", judge={"decay": 0.01}, lr=0.01),
    "fedadamw_published": case(
        "fedadamw",
        {"algorithm.single_counter": True, "algorithm.full_v": True},
        {"single_counter": True, "full_v": True, "decay": 0.01},
        lr=0.01,
    ),
    "fedlada": case("fedlada", judge={"alpha": 0.9}, lr=0.01),
    "fedlada_other_constants": case(
        "fedlada",
        {"algorithm.alpha": 0.3, "algorithm.beta2": 0.5, "algorithm.eps": 0.05, "algorithm.weight_decay": 0.1},
        {"alpha": 0.3, "beta2": 0.5, "eps": 0.05, "decay": 0.1},
        lr=0.01,
    ),
    "local_muon": muon(algorithm="local_muon"),
    "fedmuon": muon(),
    "fedmuon_other_constants": muon({"algorithm.alpha": 0.2, "algorithm.beta": 0.7}, {"alpha": 0.2, "beta": 0.7}),
    "fedmuon_no_align": muon({"algorithm.align": False}, {"align": False}),
    "fedmuon_cold": muon({"algorithm.warm_start": False}, {"warm_start": False}),
    "fedmuon_no_polar": ("fedmuon", NO_POLAR, "fedmuon", {**JUDGED_MUON, "orthogonalize": False}),
    "fedmuon_mix_first": muon({"algorithm.mix_order": "mix_then_polar"}, {"mix_order": "mix_then_polar"}),
    "fedmuon_view_scale": muon({"algorithm.shape_scale": "view"}, {"shape_scale": "view"}),
    "fedmuon_heavy_nesterov": muon({"algorithm.nesterov": True}, {"nesterov": True}),
    "fedmuon_server_adam": muon({"server": "adam"}, JUDGED_ADAM),
    "fedmuon_cosine": muon(
        {"local.schedule": "cosine"}, {"eta": [0.05, 0.0375, 0.0125], "eta_vec": [0.02, 0.015, 0.005]}
    ),
    "fedmuon_published": ("fedmuon_published", PUBLISHED, "fedmuon", JUDGED_PUBLISHED),
    "fedmuon_lmo": case("fedmuon_lmo", {"algorithm.polar.method": "svd"}, {"beta": 0.9}, lr=0.02),
    "muloco": muon(judge={"server_lr": 0.9, "server_momentum": 0.8, "server_nesterov": True}, algorithm="muloco"),
}

# What the server holds at the end beside "update", by the product's name and the judge's: of a case, else its judge.
STATES = {
    "scaffold": {"control": "c"},
    "feddyn": {"mean_correction": "h"},
    "fedcm": {"delta_g": "G"},
    "mimelite": {"momentum": "m"},
    "fedlada": {"delta_g": "G", "vh": "vh"},
    "fedadamw": {"delta_g": "G", "v_mean": "v"},
    "fedadamw_published": {"delta_g": "G", "v": "v"},
    "fedmuon": {"delta_g": "G", "momentum": "Mbar"},
    "fedmuon_no_align": {"momentum": "Mbar"},
    "fedmuon_cold": {"delta_g": "G"},
    "fedmuon_lmo": {"control": "C"},
}


@pytest.mark.parametrize("weights", ["samples", "uniform"])
@pytest.mark.parametrize("network", ["mlp", "conv"])
@pytest.mark.parametrize("name", CASES)
def test_three_rounds_agree_with_the_judge(name: str, network: str, weights: str, tmp_path: Any) -> None:
    _, _, judge, options = CASES[name]
    expected = judged(network, judge, weights=weights, **options)
    agrees(name, network, expected, tmp_path, **{"aggregation.weights": weights})


@pytest.mark.parametrize("weights", ["samples", "uniform"])
@pytest.mark.parametrize("name", ["scaffold", "feddyn", "fedmuon_lmo"])
def test_a_client_without_samples_is_not_counted(name: str, weights: str, tmp_path: Any) -> None:
    sizes = [0, 12, 4, 9]
    assert sum(0 in members for members in cohorts()) not in (0, ROUNDS)
    expected = judged("mlp", CASES[name][2], sizes, weights=weights, **CASES[name][3])
    agrees(name, "mlp", expected, tmp_path, sizes=sizes, **{"aggregation.weights": weights})


@pytest.mark.parametrize("name", ["scaffold", "fednova", "fedmuon"])
def test_late_clients_count_with_the_steps_they_took(name: str, tmp_path: Any) -> None:
    late = {"sigma": 1.0, "deadline": 2.0, "late": "partial", "over_selection": 1.3}
    full = work()
    asked = [uniform(SEED, r, len(SIZES), 4).tolist() for r in range(ROUNDS)]
    steps = [{c: len(full[r][c]) for c in asked[r]} for r in range(ROUNDS)]
    done = [answered(Stragglers(**late), SEED, r, steps[r], COHORT) for r in range(ROUNDS)]
    assert any(done[r][c] < steps[r][c] for r in range(ROUNDS) for c in done[r])
    cut = [[full[r][c][: done[r].get(c, 0)] for c in range(len(SIZES))] for r in range(ROUNDS)]
    expected = judged("mlp", CASES[name][2], **CASES[name][3], batches=cut, cohort=[list(one) for one in done])
    agrees(name, "mlp", expected, tmp_path, stragglers=late)


def agrees(name: str, network: str, expected: Any, path: Any, **settings: Any) -> None:
    """A case of CASES, with settings of the product beside its own, ends as the judge says."""
    algorithm, overrides, judge, _ = CASES[name]
    x, state, _ = federated(path / "run", network, algorithm, **overrides, **settings)
    x0 = start(network)
    assert set(x) == set(expected.x)
    for parameter, value in expected.x.items():
        assert not np.allclose(value, x0[parameter]), f"{parameter} did not move"
    close(x, expected.x, "x")
    close(state["update"], expected.D, "update")
    held = STATES.get(name, STATES.get(judge, {}))
    assert set(state) == {"update", *held}
    for key, figures in held.items():
        close(state[key], expected.server[figures], key)


def close(actual: Any, expected: Any, what: str) -> None:
    assert set(actual) == set(expected), what
    for name, value in actual.items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-9, err_msg=f"{what} {name}")


def test_some_clients_rest_and_come_back() -> None:
    """So that what clients keep from round to round matters to the equations above."""
    chosen = cohorts()
    assert len(chosen) == ROUNDS and len({tuple(members) for members in chosen}) > 1
    assert any(client in chosen[2] and client not in chosen[1] and client in chosen[0] for client in range(4)), chosen
