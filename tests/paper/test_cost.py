"""The callback that measures a run: FLOPs of a step against a hand count, and what it leaves."""

import json
from pathlib import Path

import pytest

import fedmuon
from fedmuon.optim.polar import DEFAULT_STEPS

BATCH, HIDDEN, INPUTS, CLASSES = 8, 4, 784, 10


def measured(*overrides: str) -> dict[str, float]:
    run = fedmuon.run(
        [
            "model=mlp", f"model.hidden=[{HIDDEN}]", "partition=iid", "federation.clients=4", "federation.cohort=2",
            "federation.rounds=3", "local.steps=2", f"local.batch_size={BATCH}", "data.validation=0",
            "engine=sequential", "trainer.limit_val_batches=0", "trainer.accelerator=cpu", "logger=none",
            f"run_dir=run-{overrides[0][10:]}", "+callbacks.cost._target_=fedmuon.paper.cost.Cost", *overrides,
        ]
    )  # fmt: skip
    return json.loads((Path(run.path) / "cost.json").read_text())


def test_flops_of_a_step_are_those_of_a_hand_count() -> None:
    """Products of matrices only: forward, gradients of both weights, gradient of the hidden units."""
    first, second = INPUTS * HIDDEN, HIDDEN * CLASSES
    by_hand = 2 * BATCH * (first + second) + 2 * BATCH * (first + second) + 2 * BATCH * second
    fedavg = measured("algorithm=fedavg")
    assert fedavg["flops_step"] == by_hand
    assert fedavg["seconds_step"] > 0 and fedavg["seconds_server"] > 0
    assert fedavg["peak_bytes"] is None  # of a GPU only

    def polar(short: int, long: int) -> int:
        """An iteration: the Gram matrix, its square, and that times the matrix."""
        return DEFAULT_STEPS["newton_schulz"] * (2 * short * short * long * 2 + 2 * short**3)

    muon = measured("algorithm=local_muon", "algorithm.polar.method=newton_schulz")
    assert muon["flops_step"] == pytest.approx(by_hand + polar(HIDDEN, INPUTS) + polar(HIDDEN, CLASSES), rel=0.5)
    assert muon["flops_step"] > by_hand
