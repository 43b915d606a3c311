"""Clients that send NaN or raise: by policy, named, and the global model stays finite."""

import json

import pytest
import torch
from torch import Tensor

from fedmuon.experiment import RunFailed
from tests.system.tasks import Classifier, Quadratic, blobs, lines, normed


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
    run = federate(
        task,
        data,
        lists,
        rounds=2,
        **{"aggregation.nonfinite": "drop", "aggregation.weights": weights, "local.lr": 0.1},
    )
    other = Quadratic()
    federate(other, data, [lists[0], [], lists[2]], rounds=2, **{"aggregation.weights": weights, "local.lr": 0.1})
    torch.testing.assert_close(task.w, other.w)
    assert lines(run)[0]["train/rejected"] == [1] and lines(run)[0]["train/trained"] == 2
    rows = lines(run, "clients.jsonl")[:3]
    assert [row["rejected"] for row in rows] == [False, True, False]
    assert [row["weight"] for row in rows] == pytest.approx(
        [2 / 3, 0, 1 / 3] if weights == "samples" else [0.5, 0, 0.5]
    )
    assert lines(run)[0]["aggregation/largest_weight"] == max(row["weight"] for row in rows)
    assert "NaN or infinity" in capsys.readouterr().out


def test_nan_clipped_counts_as_no_change(federate):
    data, lists = spoiled()
    task = Quadratic()
    run = federate(
        task, data, lists, **{"aggregation.nonfinite": "clip", "aggregation.weights": "uniform", "local.lr": 0.1}
    )
    assert task.w.item() == pytest.approx(0.19 * (1 + 0 + 3) / 3)
    assert lines(run)[0]["train/rejected"] == [1]
    assert [row["weight"] for row in lines(run, "clients.jsonl")] == [1 / 3] * 3


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


def test_a_fault_before_the_first_round_is_told_as_it_is(federate):
    class Unlicensed(Quadratic):
        def on_fit_start(self):
            raise RuntimeError("no licence")

    with pytest.raises(RunFailed, match=r"Unlicensed\.on_fit_start: RuntimeError: no licence") as caught:
        federate(Unlicensed(), torch.tensor([1.0, 3]), [[0], [1]])
    summary = json.loads((caught.value.path / "summary.json").read_text())
    assert summary["status"] == "failed" and "no licence" in summary["cause"]
