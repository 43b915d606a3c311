"""Rounds by hand: weights, local work, clients with little or nothing, buffers, frozen and tied parameters."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedmuon
from fedmuon.errors import UsageError
from fedmuon.federation import Federation
from tests.system.tasks import Classifier, Quadratic, blobs, lines, normed


@pytest.mark.parametrize(
    ("weights", "expected"), [("samples", 0.19 * (3 * 1 + 1 * 3) / 4), ("uniform", 0.19 * (1 + 3) / 2)]
)
def test_weights_on_two_quadratics_by_hand(federate, weights, expected):
    task = Quadratic()
    run = federate(
        task, torch.tensor([1.0, 1, 1, 3]), [[0, 1, 2], [3]], **{"aggregation.weights": weights, "local.lr": 0.1}
    )
    assert task.w.item() == pytest.approx(expected, abs=1e-6)
    shares = [row["weight"] for row in lines(run, "clients.jsonl")]
    assert shares == ([0.75, 0.25] if weights == "samples" else [0.5, 0.5])
    assert lines(run)[0]["aggregation/largest_weight"] == shares[0]


def test_the_rate_follows_the_schedule_in_each_round(federate):
    task = Quadratic()
    overrides = {
        "local.lr": 0.5,
        "local.schedule": "step",
        "local.step_every": 1,
        "local.step_factor": 0.5,
        "local.steps": 1,
    }
    run = federate(task, torch.tensor([1.0, 1]), [[0], [1]], rounds=3, **overrides)
    assert [row["train/lr"] for row in lines(run)] == [0.5, 0.25, 0.125]
    assert 1 - task.w.item() == pytest.approx(0.5 * 0.75 * 0.875)


def test_the_servers_rate_multiplies_the_mean_change(federate):
    task = Quadratic()
    federate(task, torch.tensor([1.0, 1]), [[0], [1]], **{"local.lr": 0.1, "local.steps": 1, "server.lr": 0.5})
    assert task.w.item() == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        ({"local.epochs": 1}, [2, 3, 1]),
        ({"local.epochs": 0.5}, [1, 2, 1]),
        ({"local.epochs": 2.5}, [5, 8, 3]),
        ({"local.steps": 5}, [5, 5, 5]),
    ],
)
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


def test_a_metric_that_a_client_does_not_log_is_the_mean_of_the_others(federate):
    class Some(Quadratic):
        def training_step(self, batch, batch_idx):
            if len(batch) > 1:
                self.log("several", float(len(batch)))
            return super().training_step(batch, batch_idx)

    run = federate(Some(), torch.ones(6), [[0], [1, 2], [3, 4, 5]])
    (row,) = lines(run)
    assert row["train/several"] == pytest.approx((2 / 6 * 2 + 3 / 6 * 3) / (5 / 6))


def test_the_first_round_does_not_set_the_chunks_of_the_others(federate, tmp_path, monkeypatch):
    schedule = tmp_path / "schedule.json"
    schedule.write_text("[[2], [0, 1, 2, 3]]")
    chunks, train = [], Federation.training_step
    monkeypatch.setattr(Federation, "training_step", lambda self, c, batch_idx: chunks.append(c) or train(self, c, 0))
    keys = {"sampler": "fixed", "sampler.path": str(schedule), "engine.chunk": 2, "federation.cohort": 4}
    federate(Quadratic(), torch.ones(4), [[0], [1], [2], [3]], rounds=2, **keys)
    assert chunks == [[2], [], [0, 1], [2, 3]]


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_many_steps_of_a_loss_in_bfloat16_are_counted(federate, engine):
    class Half(Quadratic):
        def training_step(self, batch, batch_idx):
            return (0 * self.w.sum() + batch_idx % 2).bfloat16()

    run = federate(Half(), torch.ones(2), [[0], [1]], **{"local.steps": 300, "engine": engine})
    assert lines(run)[0]["train/loss"] == 0.5


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
    for state in (old, new):
        del state["federation"]["server"]["even"]  # of the report alone: after such a round nobody can derive G
    assert_equal_trees(old["federation"], new["federation"])
    assert_equal_trees(old["optimizer_states"], new["optimizer_states"])


NEVER = {  # lists of the clients, keys, what is told
    "nobody has a sample": ([[], []], {}, r"^partition: gives none of 2 clients a sample"),
    "nobody is there": ([[0], [1]], {"sampler": "availability", "sampler.probability": 0}, r"^sampler=availability: "),
    "who is there has none": (
        [[0], []],
        {"sampler": "fixed", "sampler.path": "cohorts.json", "sampler.repeat": True},
        r"^sampler=fixed: draws no client with samples in any of 2 rounds, .* 1 of 2 clients have some",
    ),
    "nobody answers": ([[0], [1]], {"stragglers.failure": 1.0}, r"^stragglers\.failure=1\.0, .* in any of 2 rounds"),
    "nobody is in time": (
        [[0], [1]],
        {"stragglers.deadline": 0.5},
        r"^stragglers\..*\.deadline=0\.5: no client answers",
    ),
    "however long it is": ([[0], [1]], {"stragglers.failure": 1.0, "rounds": 10**9}, r"in the first 1,000 rounds"),
}


@pytest.mark.parametrize("case", NEVER)
def test_a_run_in_which_nobody_would_ever_train_is_refused(federate, tmp_path, case):
    lists, keys, told = NEVER[case]
    Path("cohorts.json").write_text("[[1]]")
    with pytest.raises(UsageError, match=told) as caught:
        federate(Quadratic(), torch.ones(2), lists, **{"rounds": 2, **keys})
    assert "\n" not in str(caught.value) and not any(path.name.startswith("run") for path in tmp_path.iterdir())


def test_one_round_in_which_somebody_trains_is_enough(federate):
    Path("cohorts.json").write_text("[[1], [1], [0]]")
    run = federate(Quadratic(), torch.ones(2), [[0], []], rounds=3, sampler="fixed", **{"sampler.path": "cohorts.json"})
    assert run.summary["skipped_rounds"] == [1, 2]


@pytest.mark.parametrize("wrong", [-1, 2])
def test_a_client_that_does_not_exist_is_named(federate, monkeypatch, wrong):
    monkeypatch.setattr("fedmuon.data.cohort.uniform", lambda *a, sizes: [0, wrong])
    with pytest.raises(
        UsageError, match=rf"^sampler=uniform: names client {wrong} in round 1; federation\.clients=2 are"
    ):
        federate(Quadratic(), torch.ones(2), [[0], [1]])


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
    task.register_buffer("mask", torch.tensor([0.1, -torch.inf]), persistent=False)
    task.register_buffer("phase", torch.tensor([1j]))
    federate(task, (x, y), [range(8), range(8, 12)], **{"local.epochs": 1, "aggregation.buffers": policy})
    norm = task.network[0]
    assert norm.num_batches_tracked.dtype == torch.int64 and norm.num_batches_tracked.shape == ()
    assert task.version.dtype == torch.int32 and task.version.item() == 7
    assert task.scale.dtype == torch.float64 and task.scale.item() == 0.5
    assert torch.equal(task.mask, torch.tensor([0.1, -torch.inf])) and task.phase.item() == 1j
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
