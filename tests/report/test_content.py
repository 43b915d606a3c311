"""What the page is told: curves, fairness, partitions, problems; all of it JSON."""

import json
import math

import numpy as np
import pytest

from fedmuon.data.partition import Partition
from fedmuon.report.clients import latest
from fedmuon.report.compare import groups
from fedmuon.report.content import content
from fedmuon.report.curves import curves
from fedmuon.report.partitions import LINES, described, partitions
from fedmuon.report.results import Metric
from fedmuon.report.runs import read_run, read_runs
from fedmuon.selection import worst_tenth
from tests.report.directories import write_run

ACCURACY = Metric("accuracy", True)


def test_curves_have_mean_and_deviation_over_common_rounds(tmp_path):
    write_run(tmp_path / "a", [0.2, 0.4, 0.6], status="running", federation__rounds=9)
    write_run(tmp_path / "b", [0.4, 0.4], seed=1, status="running", federation__rounds=9)
    (group,) = groups(read_runs([tmp_path])[0])
    found = curves(group, ACCURACY, points=100)
    assert (found["round"], found["mb"], found["s"]) == ([1, 2], [3, 6], [2, 4])
    one = found["series"]["test/accuracy"]
    assert one["mean"] == pytest.approx([0.3, 0.4]) and one["dev"] == pytest.approx([0.14142, 0])
    assert one["runs"] == [[0.2, 0.4], [0.4, 0.4]]


def test_long_curves_are_thinned_and_keep_their_ends_and_evaluated_rounds(tmp_path):
    path = write_run(tmp_path / "a", [0.1])
    rows = [
        {"round": r, "train/loss": 1 / r, **({"test/accuracy": 0.5} if r % 50 == 0 else {})} for r in range(1, 2001)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = curves(groups([read_run(path)])[0], ACCURACY, points=100)
    assert found["round"][0] == 1 and found["round"][-1] == 2000 and len(found["round"]) <= 100
    assert sum(value is not None for value in found["series"]["test/accuracy"]["mean"]) == 40


def test_the_worst_tenth():
    values = np.arange(20) / 20
    assert worst_tenth(values, higher=True) == pytest.approx(0.025)
    assert worst_tenth(values, higher=False) == pytest.approx(0.925)
    assert worst_tenth(np.array([0.3]), higher=True) == 0.3


def test_each_clients_latest_figure_counts(tmp_path):
    path = write_run(tmp_path / "a", [0.1])
    (path / "metrics.jsonl").write_text('{"round": 1, "clients/before/accuracy_mean": 0.5}\n')
    rows = [
        {"round": 1, "client": 3, "before/accuracy": 0.1, "after/accuracy": 0.2},
        {"round": 1, "client": 4, "before/accuracy": 0.9},
        {"round": 2, "client": 3, "before/accuracy": 0.5, "after/accuracy": None},
        {"round": 3, "client": 3},
    ]
    (path / "clients.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"round": 4, "before/ac')
    found = latest(read_run(path), ACCURACY)
    assert found["before"].tolist() == [0.5, 0.9] and found["after"].tolist() == [0.2]


def test_partitions_are_shown_once_with_shares_and_sizes(tmp_path):
    labels = np.array([0, 0, 0, 1, 1, 1])
    for name, lists in (("a", [[0, 1], [2, 3, 4, 5], []]), ("b", [[0, 1], [2, 3, 4, 5], []]), ("c", [[0], [1], [2]])):
        path = write_run(tmp_path / name, [0.1])
        Partition.from_lists(lists).save(path / "partition.npz", labels=labels, classes=("<cat>", "dog"))
    (write_run(tmp_path / "d", [0.1]) / "partition.npz").write_bytes(b"PK no")
    found, problems = partitions(read_runs([tmp_path])[0])
    assert [one["runs"] for one in found] == [[0, 1], [2]] and len(problems) == 1
    assert found[0]["sizes"] == [2, 4, 0] and found[0]["shares"] == [[100, 0], [25, 75], [0, 0]]
    assert found[0]["classes"] == ["<cat>", "dog"] and (found[0]["smallest"], found[0]["largest"]) == (0, 4)


def test_many_clients_share_lines_in_the_order_of_their_most_frequent_class(tmp_path):
    labels = np.arange(20_000) % 10
    lists = [np.flatnonzero(labels == i % 10)[i // 10 :: 100] for i in range(1000)]
    Partition.from_lists(lists).save(tmp_path / "p.npz", labels=labels, classes="0123456789")
    found = described(tmp_path / "p.npz")
    assert len(found["sizes"]) == len(found["shares"]) == LINES and found["clients"] == 1000
    assert np.all(np.diff(np.argmax(found["shares"], 1)) >= 0)


def test_everything_is_json_and_problems_are_told(tmp_path):
    write_run(tmp_path / "a", [0.5, None], algorithm="</script><b>", evaluation__targets=None)
    write_run(tmp_path / "b", [0.5], local__lr=0.3, federation__rounds=1, summary={"parameters": None})
    (tmp_path / "b" / "summary.json").write_text("{")
    runs, problems = read_runs([tmp_path])
    found = content(runs, problems, title="t")
    json.dumps(found, allow_nan=False)
    assert any("summary.json: is damaged" in problem for problem in found["problems"])
    assert any("a: its test accuracy in the last round is not finite" in problem for problem in found["problems"])
    assert found["common"]["data.name"] == "pictures" and found["own"][1]["local.lr"] == "0.3"


def test_a_setting_that_is_not_finite_is_text(tmp_path):
    for name, rates in (("a", math.inf), ("b", [0.1, math.nan]), ("c", 0.1)):
        write_run(tmp_path / name, [0.5], local__lr=rates)
    found = content(read_runs([tmp_path])[0])
    json.dumps(found, allow_nan=False)
    assert [group["settings"]["local.lr"] for group in found["groups"]] == [0.1, "inf", [0.1, "nan"]]


def test_partitions_that_are_not_drawn_are_told(tmp_path):
    for number in range(14):
        path = write_run(tmp_path / f"{number:02}", [0.1], seed=number)
        Partition.from_lists([[0], list(range(1, 2 + number))]).save(path / "partition.npz")
    found = content(read_runs([tmp_path])[0])
    assert len(found["partitions"]) == 12 and found["problems"][-1].startswith("2 other partitions are not drawn")
