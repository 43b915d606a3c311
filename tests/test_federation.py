"""Rounds on tasks small enough to be computed by hand: weights, work, buffers, faults, what a run leaves in the process."""

import gc
import json
import logging
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torchmetrics.classification import MulticlassAccuracy

import fedmuon
from fedmuon.experiment import RunFailed


class Quadratic(LightningModule):
    """(w - c)^2 / 2 over the batch's targets c; plain local SGD from 0 arrives at c (1 - (1 - lr)^K)."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return ((self.w - batch) ** 2).mean() / 2


class Classifier(LightningModule):
    """Any network under cross-entropy, logging the way that users do."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.seen: list[Any] = []
        self.accuracy = MulticlassAccuracy(3, average="micro")

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        logits = self.network(batch[0])
        self.seen.append(logits.dtype)
        self.log("train_batch", float(len(batch[0])), prog_bar=True, on_epoch=True, sync_dist=True)
        return {"loss": cross_entropy(logits, batch[1])}

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        logits = self.network(batch[0])
        self.accuracy(logits, batch[1])
        self.log_dict({"val_loss": cross_entropy(logits, batch[1]), "val_acc": self.accuracy}, prog_bar=True)


@pytest.fixture
def federate(tmp_path: Path) -> Callable[..., fedmuon.experiment.Run]:
    """`fedmuon.federate` with FedAvg on the CPU, every run in a directory of its own."""
    count = iter(range(1000))

    def run(module: LightningModule, train: Any, lists: Any, **overrides: Any) -> Any:
        keys: dict[str, Any] = {
            "algorithm": "fedavg", "rounds": 1, "logger": "none", "trainer.accelerator": "cpu", "local.steps": 2, "local.batch_size": 4,
            "run_dir": str(tmp_path / f"run{next(count)}"), **overrides,
        }  # fmt: skip
        if "local.epochs" in overrides:
            del keys["local.steps"]  # both at once are refused
        return fedmuon.federate(module, train, partition=lists, **keys)

    return run


def lines(run: Any, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.path / name).read_text().splitlines()]


def blobs(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    return torch.randn(count, 4, generator=generator) + labels[:, None], labels


# -- weights and local work


@pytest.mark.parametrize(("weights", "expected"), [("samples", 0.19 * (3 * 1 + 1 * 3) / 4), ("uniform", 0.19 * (1 + 3) / 2)])
def test_weights_on_two_quadratics_by_hand(federate, weights, expected):
    task = Quadratic()
    run = federate(task, torch.tensor([1.0, 1, 1, 3]), [[0, 1, 2], [3]], **{"aggregation.weights": weights, "local.lr": 0.1})
    assert task.w.item() == pytest.approx(expected, abs=1e-6)
    shares = [row["weight"] for row in lines(run, "clients.jsonl")]
    assert shares == ([0.75, 0.25] if weights == "samples" else [0.5, 0.5])
    assert lines(run)[0]["aggregation/largest_weight"] == shares[0]


def test_the_rate_follows_the_schedule_in_each_round(federate):
    task = Quadratic()
    overrides = {"local.lr": 0.5, "local.schedule": "step", "local.step_every": 1, "local.step_factor": 0.5, "local.steps": 1}
    run = federate(task, torch.tensor([1.0, 1]), [[0], [1]], rounds=3, **overrides)
    assert [row["train/lr"] for row in lines(run)] == [0.5, 0.25, 0.125]
    assert 1 - task.w.item() == pytest.approx(0.5 * 0.75 * 0.875)


def test_the_servers_rate_multiplies_the_mean_change(federate):
    task = Quadratic()
    federate(task, torch.tensor([1.0, 1]), [[0], [1]], **{"local.lr": 0.1, "local.steps": 1, "server.lr": 0.5})
    assert task.w.item() == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("work", "expected"),
    [({"local.epochs": 1}, [2, 3, 1]), ({"local.epochs": 0.5}, [1, 2, 1]), ({"local.epochs": 2.5}, [5, 8, 3]), ({"local.steps": 5}, [5, 5, 5])],
)  # fmt: skip
def test_local_work_in_steps_and_in_epochs(federate, work, expected):
    lists = [range(7), range(7, 19), range(19, 23)]
    count = iter(range(99))

    class Counting(Quadratic):
        def training_step(self, batch, batch_idx):
            next(count)
            return super().training_step(batch, batch_idx)

    run = federate(Counting(), torch.ones(23), lists, **work)
    assert [row["steps"] for row in lines(run, "clients.jsonl")] == expected
    assert next(count) == sum(expected)


# -- clients with nothing, or one sample


def test_an_empty_client_takes_part_with_nothing(federate):
    task, without = Quadratic(), Quadratic()
    overrides = {"local.lr": 0.1, "aggregation.weights": "uniform"}
    run = federate(task, torch.tensor([1.0, 1, 3]), [[0, 1], [], [2]], **overrides)
    federate(without, torch.tensor([1.0, 1, 3]), [[0, 1], [2]], **overrides)
    assert task.w.item() == pytest.approx(0.19 * 2) and torch.isfinite(task.w).all()
    assert [row["client"] for row in lines(run, "clients.jsonl")] == [0, 2]
    assert (lines(run)[0]["train/cohort"], lines(run)[0]["train/trained"]) == (3, 2)


@pytest.mark.parametrize("server", ["sgd", "adam"])
def test_a_round_of_empty_clients_changes_nothing_and_says_so(federate, server, capsys):
    def after(rounds: int) -> tuple[Any, dict[str, Tensor], Any]:
        torch.manual_seed(0)
        task = Classifier(nn.Linear(4, 3))
        overrides = {"algorithm": "fedmuon", "server": server, "federation.cohort": 1, "rounds": rounds}
        run = federate(task, blobs(6), [[0, 1, 2, 3, 4, 5], []], **overrides)
        state = torch.load(run.path / "checkpoints" / "last.ckpt", weights_only=False)
        return run, {n: p.detach().clone() for n, p in task.named_parameters()}, state

    run, _, _ = after(6)
    skipped = [row["round"] for row in lines(run) if row.get("aggregation/skipped")]
    assert run.summary["skipped_rounds"] == skipped and 0 < len(skipped) < 6
    assert f"round {skipped[-1]}: " in capsys.readouterr().out
    last = next(r for r in skipped if r > 1 and r - 1 not in skipped)
    (_, before, old), (_, now, new) = after(last - 1), after(last)
    assert all(torch.equal(before[name], now[name]) for name in now)
    assert new["global_step"] == old["global_step"] + 1 == last
    assert_equal_trees(old["federation"], new["federation"])
    assert_equal_trees(old["optimizer_states"], new["optimizer_states"])


def test_nobody_has_a_sample(federate):
    task = Quadratic()
    run = federate(task, torch.ones(2), [[], []], rounds=2)
    assert task.w.item() == 0 and run.summary["skipped_rounds"] == [1, 2] and run.summary["status"] == "finished"


def assert_equal_trees(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_equal_trees(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_equal_trees(one, other)
    else:
        assert torch.equal(a, b) if isinstance(a, Tensor) else a == b


def normed() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))


def test_a_last_batch_of_one_leaves_batch_norms_statistics_alone(federate):
    x, y = blobs(5)
    task = Classifier(normed())
    run = federate(task, (x, y), [range(5)], **{"local.epochs": 1, "local.lr": 0.1})
    (row,) = lines(run, "clients.jsonl")
    assert row["steps"] == 2
    batch = fedmuon.data.batches(0, 0, 0, samples=5, batch_size=4, epochs=1)[0]
    norm = task.network[0]
    torch.testing.assert_close(norm.running_mean, 0.1 * x[batch].mean(0))
    torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * x[batch].var(0))
    assert norm.num_batches_tracked.item() == 1 and norm.training


def test_a_client_of_one_sample_trains_through_batch_norm(federate):
    task = Classifier(normed())
    before = task.network[1].weight.detach().clone()
    run = federate(task, blobs(1), [[0]], **{"local.lr": 0.1})
    assert run.summary["status"] == "finished" and not torch.equal(task.network[1].weight, before)
    assert torch.equal(task.network[0].running_mean, torch.zeros(4)) and torch.isfinite(task.network[1].weight).all()


# -- buffers, frozen and tied parameters


@pytest.mark.parametrize("policy", ["average", "keep"])
def test_buffers_keep_dtype_and_shape(federate, policy):
    x, y = blobs(12)
    task = Classifier(normed())
    task.register_buffer("version", torch.tensor(7, dtype=torch.int32))
    task.register_buffer("scale", torch.tensor(0.5, dtype=torch.float64))
    federate(task, (x, y), [range(8), range(8, 12)], **{"local.epochs": 1, "aggregation.buffers": policy})
    norm = task.network[0]
    assert norm.num_batches_tracked.dtype == torch.int64 and norm.num_batches_tracked.shape == ()
    assert task.version.dtype == torch.int32 and task.version.item() == 7
    assert task.scale.dtype == torch.float64 and task.scale.item() == 0.5
    if policy == "keep":
        assert norm.num_batches_tracked.item() == 0 and torch.equal(norm.running_mean, torch.zeros(4))
        return
    assert norm.num_batches_tracked.item() == 2  # 2/3 * 2 batches + 1/3 * 1 batch = 5/3
    first, second = fedmuon.data.batches(0, 0, 0, samples=8, batch_size=4, epochs=1)
    of_first = 0.9 * 0.1 * x[first].mean(0) + 0.1 * x[second].mean(0)
    torch.testing.assert_close(norm.running_mean, 2 / 3 * of_first + 1 / 3 * 0.1 * x[8:].mean(0))


@pytest.mark.parametrize("algorithm", ["fedavg", "fedmuon"])
def test_tied_parameters_stay_tied_and_frozen_ones_stay(federate, algorithm):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 3))
    network[2].weight = network[0].weight
    network[3].requires_grad_(False)
    task = Classifier(network)
    before = {name: p.detach().clone() for name, p in task.named_parameters()}
    run = federate(task, blobs(9), [range(6), range(6, 9)], algorithm=algorithm, rounds=2)
    assert network[2].weight is network[0].weight
    moved = {name for name, p in task.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {"network.0.weight", "network.0.bias", "network.2.bias"}
    routed = [route["parameter"] for route in json.loads((run.path / "routing.json").read_text())]
    assert routed == ["network.0.weight", "network.0.bias", "network.2.bias"]
    fresh = Classifier(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 3)))
    fresh.network[2].weight = fresh.network[0].weight
    fedmuon.load(run.path, fresh)
    assert all(torch.equal(p, dict(task.named_parameters())[name]) for name, p in fresh.named_parameters())


# -- clients that send NaN


def spoiled() -> tuple[Tensor, list[range]]:
    """Client 1 of three has NaN among its targets."""
    return torch.tensor([1.0, 1, float("nan"), 3]), [range(2), range(2, 3), range(3, 4)]


def test_nan_raises_and_names_round_client_and_cause(federate, tmp_path):
    with pytest.raises(RunFailed, match=r"round 1: client 1 .*NaN or infinity.*aggregation\.nonfinite=drop") as caught:
        federate(Quadratic(), *spoiled())
    summary = json.loads((caught.value.path / "summary.json").read_text())
    assert summary["status"] == "failed" and "client 1" in summary["cause"]


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_nan_dropped_is_as_if_the_client_were_not_there(federate, weights, capsys):
    data, lists = spoiled()
    task = Quadratic()
    run = federate(task, data, lists, rounds=2, **{"aggregation.nonfinite": "drop", "aggregation.weights": weights, "local.lr": 0.1})
    other = Quadratic()
    federate(other, data, [lists[0], [], lists[2]], rounds=2, **{"aggregation.weights": weights, "local.lr": 0.1})
    torch.testing.assert_close(task.w, other.w)
    assert lines(run)[0]["train/rejected"] == [1] and lines(run)[0]["train/trained"] == 2
    assert [row["rejected"] for row in lines(run, "clients.jsonl")][:3] == [False, True, False]
    assert "NaN or infinity" in capsys.readouterr().out


def test_nan_clipped_counts_as_no_change(federate):
    data, lists = spoiled()
    task = Quadratic()
    run = federate(task, data, lists, **{"aggregation.nonfinite": "clip", "aggregation.weights": "uniform", "local.lr": 0.1})
    assert task.w.item() == pytest.approx(0.19 * (1 + 0 + 3) / 3)
    assert lines(run)[0]["train/rejected"] == [1]


def test_nan_in_a_buffer_clipped_leaves_the_buffer(federate):
    x, y = blobs(8)
    x[6] = float("nan")
    task = Classifier(normed())
    federate(task, (x, y), [range(4), range(4, 8)], **{"aggregation.nonfinite": "clip", "local.epochs": 1})
    norm = task.network[0]
    torch.testing.assert_close(norm.running_mean, 0.5 * 0.1 * x[:4].mean(0))
    torch.testing.assert_close(norm.running_var, 0.5 * (0.9 + 0.1 * x[:4].var(0)) + 0.5)


def test_everyone_dropped_is_not_called_a_round_without_samples(federate, capsys):
    task = Quadratic()
    run = federate(task, torch.full((2,), float("nan")), [[0], [1]], **{"aggregation.nonfinite": "drop"})
    assert task.w.item() == 0 and run.summary["skipped_rounds"] == [1]
    assert "no client with samples" not in capsys.readouterr().out


def test_an_exception_in_a_task_names_round_client_and_step(federate):
    class Broken(Quadratic):
        def training_step(self, batch, batch_idx):
            if batch_idx == 1 and batch[0] == 3:
                raise KeyError("mask")
            return super().training_step(batch, batch_idx)

    with pytest.raises(RunFailed, match=r"round 1: client 1, local step 2: KeyError: 'mask'"):
        federate(Broken(), torch.tensor([1.0, 3]), [[0], [1]])


# -- a user's module


def test_numbers_and_torchmetrics_of_a_users_module(federate):
    torch.manual_seed(0)
    task = Classifier(nn.Linear(4, 3))
    val = blobs(23, seed=1)
    run = federate(task, blobs(12), [range(8), range(8, 12)], val=val, **{"evaluation.batch_size": 10, "rounds": 2})
    row = lines(run)[-1]
    logits = task.network(val[0]).detach()
    assert row["val/loss"] == pytest.approx(cross_entropy(logits, val[1]).item(), abs=1e-6)
    assert row["val/acc"] == pytest.approx((logits.argmax(1) == val[1]).double().mean().item())
    assert row["train/train_batch"] == 4
    assert run.summary["best"]["val/loss"] == min(one["val/loss"] for one in lines(run))


def test_the_users_own_optimizer_is_not_used_and_that_is_said(federate, capsys):
    class Own(Quadratic):
        def configure_optimizers(self):
            raise AssertionError("called")

    federate(Own(), torch.ones(2), [[0], [1]])
    assert "Own.configure_optimizers is not used" in capsys.readouterr().out


def test_the_module_is_the_users_again_afterwards(federate):
    task = Classifier(nn.Linear(4, 3))
    federate(task, blobs(6), [range(3), range(3, 6)])
    assert "log" not in vars(task) and "log_dict" not in vars(task)
    assert all(p.requires_grad and not p.is_inference() for p in task.parameters())
    cross_entropy(task.network(blobs(6)[0]), blobs(6)[1]).backward()


@pytest.mark.parametrize(
    ("precision", "computed", "kept"),
    [("bf16-mixed", torch.bfloat16, torch.float32), ("64-true", torch.float64, torch.float64), ("32-true", torch.float32, torch.float32)],
)
def test_precisions(federate, precision, computed, kept):
    torch.manual_seed(0)
    task = Classifier(nn.Linear(4, 3))
    before = task.network.weight.detach().clone()
    run = federate(task, blobs(12), [range(6), range(6, 12)], algorithm="fedmuon", val=blobs(6), **{"trainer.precision": precision})
    assert set(task.seen) == {computed}
    assert task.network.weight.dtype == kept and not torch.equal(task.network.weight, before.to(kept))
    assert torch.get_default_dtype() == torch.float32 and run.summary["status"] == "finished"


def test_dropout_is_drawn_per_client_and_off_in_evaluation(federate):
    class Dropped(Quadratic):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)
            self.outputs = []

        def training_step(self, batch, batch_idx):
            self.outputs.append(tuple(self.drop(torch.ones(64)).tolist()))
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            self.log("kept", self.drop(torch.ones(64)).mean())

    tasks = [Dropped(), Dropped()]
    for task in tasks:
        run = federate(task, torch.ones(2), [[0], [1]], val=torch.ones(2), rounds=2, **{"evaluation.metric": "kept"})
        torch.rand(3)  # the global generator is nobody's source
    assert tasks[0].outputs == tasks[1].outputs and len(set(tasks[0].outputs)) == 8
    assert [row["val/kept"] for row in lines(run)] == [1, 1]


# -- the process


def test_memory_reaches_a_plateau(federate):
    class Watched(Classifier):
        def training_step(self, batch, batch_idx):
            self.seen = []
            self.steps = getattr(self, "steps", 0) + 1
            if self.steps in (4 * 20, 4 * 60):
                gc.collect()
                self.held = [*getattr(self, "held", []), len(gc.get_objects())]  # tensors are among them
            return super().training_step(batch, batch_idx)

    task = Watched(nn.Linear(4, 3))
    federate(task, blobs(12), [range(6), range(6, 12)], algorithm="fedmuon", rounds=60, val=blobs(6))
    early, late = task.held
    assert late - early < 40, f"{(late - early) / 40:.1f} objects a round"


def test_runs_leave_nothing_behind_in_the_process(federate):
    def state() -> tuple[Any, ...]:
        names = ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning")
        levels = [(logging.getLogger(n).level, len(logging.getLogger(n).handlers)) for n in names]
        return (
            {t.name for t in threading.enumerate()}, levels, len(logging.getLogger().handlers), torch.get_default_dtype(),
            torch.is_grad_enabled(), torch.random.get_rng_state().tolist(), torch.is_autocast_enabled("cpu"), list(warnings.filters),
            torch.are_deterministic_algorithms_enabled(),
        )  # fmt: skip

    federate(Quadratic(), torch.ones(2), [[0], [1]])
    before = state()
    for precision in ("64-true", "bf16-mixed", "32-true"):
        federate(Classifier(nn.Linear(4, 3)), blobs(6), [range(3), range(3, 6)], val=blobs(3), **{"trainer.precision": precision})
    assert state()[:5] == before[:5] and state()[6:] == before[6:]


def test_bytes_follow_from_what_an_algorithm_sends(federate):
    task = Classifier(nn.Linear(4, 3))
    tensors = 4 * (12 + 3)
    for algorithm, up, down in (("fedavg", tensors, tensors), ("fedmuon", tensors + 48, 2 * tensors + 48)):
        run = federate(task, blobs(6), [range(3), range(3, 6), []], algorithm=algorithm)
        assert (lines(run)[0]["comm/up_bytes"], lines(run)[0]["comm/down_bytes"]) == (2 * up, 3 * down)
        assert (run.summary["up_bytes"], run.summary["down_bytes"]) == (2 * up, 3 * down)


def test_regression_needs_no_labels(federate):
    class Regression(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def training_step(self, batch, batch_idx):
            return mse_loss(self.layer(batch["x"]), batch["y"])

    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    run = federate(Regression(), {"x": x, "y": x.sum(1, keepdim=True)}, "iid", rounds=3, **{"federation.clients": 4, "federation.cohort": 2})
    losses = [row["train/loss"] for row in lines(run)]
    assert losses[-1] < losses[0]
