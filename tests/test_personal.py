"""Per-client evaluation: its split, its figures against a computation by hand, and that training does not notice it."""

from typing import Any

import numpy as np
import pytest
import torch

import fedmuon
from fedmuon import rundir
from fedmuon.config import Evaluation
from fedmuon.data import EMBEDDED, Partition
from fedmuon.personal import ClientEvaluation, split_clients

KEYS = [
    "algorithm=fedavg", "model=mlp", "model.hidden=[8]", "federation.rounds=2", "federation.cohort=4", "logger=none",
    "local.steps=2", "trainer.accelerator=cpu", "data.client_validation=0.25",
]  # fmt: skip


def test_the_split_is_disjoint_complete_and_leaves_everyone_something_to_train_on() -> None:
    whole = Partition.from_lists([list(range(0, 8)), [8], [], [9, 10]])
    train, own = split_clients(whole, 0.5, seed=0)
    for client in range(4):
        assert sorted([*train[client], *own[client]]) == sorted(whole[client])
    assert [len(own[client]) for client in range(4)] == [4, 0, 0, 1]


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_figures_are_those_of_the_rows_and_training_does_not_notice(engine: str, tmp_path: Any) -> None:
    keys = [*KEYS, f"engine={engine}"]
    with_it = fedmuon.run([*keys, "evaluation.clients_every=2", f"run_dir={tmp_path / 'a'}"])
    without = fedmuon.run([*keys, f"run_dir={tmp_path / 'b'}"])
    one, two = (fedmuon.load(run.path).state_dict() for run in (with_it, without))
    assert all(torch.equal(one[name], two[name]) for name in one)
    first, second = rundir.read(with_it.path / "metrics.jsonl")
    assert not any(key.startswith("clients/") for key in first)
    rows = [row for row in rundir.read(with_it.path / "clients.jsonl") if row["round"] == 2]
    values = np.array([row["after/accuracy"] for row in rows])
    assert len(rows) == 4
    assert second["clients/after/accuracy_mean"] == pytest.approx(values.mean())
    assert second["clients/after/accuracy_deviation"] == pytest.approx(values.std())
    assert second["clients/after/accuracy_worst_tenth"] == pytest.approx(values.min())
    assert second["clients/after/loss_worst_tenth"] == pytest.approx(max(row["after/loss"] for row in rows))
    assert second["clients/after/accuracy_mean"] > second["clients/before/accuracy_mean"]


def test_the_worst_tenth_keeps_its_sign_and_knows_which_way_is_better() -> None:
    held_out = Partition.from_lists([[client] for client in range(20)])
    rows = [{"client": c, "after/score": c - 30.0, "after/regret": c - 30.0, "after/val_mse": c} for c in range(20)]
    found = ClientEvaluation(held_out, Evaluation(metric="regret", mode="min")).summary(rows)
    worst = {name: found[f"clients/after/{name}_worst_tenth"] for name in ("score", "regret", "val_mse")}
    assert worst == {"score": -29.5, "regret": -11.5, "val_mse": 18.5}


def test_asking_for_it_without_held_out_samples_says_what_to_do() -> None:
    with pytest.raises(fedmuon.UsageError, match=r"data\.client_validation"):
        fedmuon.run([*KEYS, "data.client_validation=0", "evaluation.clients_every=1"])
    assert EMBEDDED.exists()
