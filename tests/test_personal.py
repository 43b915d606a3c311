"""Per-client evaluation: its split, its figures against a computation by hand, and that training does not notice it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from lightning import LightningModule, Trainer
from torch import nn

import fedmuon
from fedmuon import rundir
from fedmuon.client import Client
from fedmuon.config import Evaluation
from fedmuon.data import Partition
from fedmuon.data.samples import Samples
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


def test_what_is_held_out_nobody_trains_on_however_lists_repeat_and_share_samples(capsys: Any) -> None:
    whole = Partition.from_lists([[0, 1, 2, 2, 2, 3], [3, 4, 5, 6, 7, 7], [8, 9], [8, 9], [10, 10]])
    train, own = split_clients(whole, 0.5, seed=0)
    assert not set(train.indices) & set(own.indices) and len(set(own.indices)) == len(own.indices)
    for client in range(5):
        kept = [sample for sample in whole[client] if sample not in own[client]]
        assert sorted(train[client]) == sorted(kept) and set(own[client]) <= set(whole[client])
    assert own.sizes.tolist() == [2, 2, 0, 0, 0]  # half of the different samples, of those that no other client has
    (told,) = capsys.readouterr().out.splitlines()
    assert "2 of 5 clients hold out fewer" in told and "data.client_validation=0.5" in told
    split_clients(Partition.from_lists([[0, 1], [2, 3], [4]]), 0.5, seed=0)
    assert not capsys.readouterr().out


class Mean(LightningModule):
    """Logs what it sees, as users do; its user has frozen one of its modules."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.frozen = nn.Linear(1, 1), nn.BatchNorm1d(1).eval()
        self.seen: list[Any] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.seen.append(batch[0])
        self.log("mean", batch[0].mean())


def measured(images: torch.Tensor, held_out: Partition, precision: Any = "32-true") -> tuple[dict[str, float], Mean]:
    """Of client 0, in batches of four."""
    task = Mean()
    client = Client(task, Samples((images,)))
    client.trainer = Trainer(accelerator="cpu", precision=precision, logger=False, enable_checkpointing=False)
    client.learned, client.buffers_by_name = dict(task.named_parameters()), dict(task.named_buffers())
    evaluation = ClientEvaluation(held_out, Evaluation(clients_every=1, batch_size=4))
    return evaluation.measure(client, 0, client.learned, client.buffers_by_name), task


def test_a_short_last_batch_counts_by_its_samples_and_modules_keep_their_modes() -> None:
    found, task = measured(torch.arange(5.0)[:, None], Partition.from_lists([range(5)]))
    assert found == {"mean": 2.0}
    assert task.training and task.scale.training and not task.frozen.training


def test_samples_have_the_runs_precision() -> None:
    _, task = measured(torch.ones(3, 1), Partition.from_lists([range(3)]), "64-true")
    assert task.seen[0].dtype == torch.float64


def test_held_out_samples_are_shifted_as_the_clients_own_always_alike() -> None:
    images = torch.rand(6, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    whole = replace(Partition.from_lists([range(6)]), features=np.array([[0.0, 90.0]], np.float32))
    training, own = split_clients(whole, 0.5, seed=0)
    assert training.features_of(0) == own.features_of(0) == (0.0, 90.0)
    _, task = measured(images, own)
    assert torch.equal(task.seen[0], images[own[0]].rot90(1, (-2, -1)))
    noisy = replace(own, features=np.array([[0.5, 0.0]], np.float32))
    first, second = (measured(images, noisy)[1].seen[0] for _ in range(2))
    assert torch.equal(first, second) and 0.2 < (first - images[own[0]]).std() < 0.8


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
