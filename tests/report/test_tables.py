"""Markdown, LaTeX and CSV from the same rows."""

import csv
import io

import pytest

from fedmuon.report.compare import groups
from fedmuon.report.results import Metric
from fedmuon.report.rows import rows, shown_target, targets_of
from fedmuon.report.runs import read_run
from fedmuon.report.tables import FORMATS
from fedmuon.report.write import table as written
from tests.report.directories import write_run

ACCURACY = Metric("accuracy", True)


@pytest.fixture
def three(tmp_path):
    """FedMuon at 60, 61, 62.4 % after two rounds, FedAvg at 50, 50, 50.9; a method with an odd name that failed."""
    starts = {"fedmuon": [0.4, 0.6], "fedavg": [0.1, 0.2]}
    ends = {"fedmuon": (0.6, 0.61, 0.624), "fedavg": (0.5, 0.5, 0.509)}
    runs = [
        write_run(tmp_path / f"{name}{seed}", [*starts[name], value], seed=seed, algorithm=name)
        for name, values in ends.items()
        for seed, value in enumerate(values)
    ]
    runs.append(write_run(tmp_path / "odd", [0.1], algorithm="50%_of|<a&b>", status="failed", federation__rounds=3))
    return [read_run(path) for path in runs]


def table(runs, kind):
    return FORMATS[kind](rows(groups(runs), ACCURACY, targets_of(runs, ACCURACY)), ACCURACY, targets_of(runs, ACCURACY))


def test_rows(three):
    found = {row.group.label: row for row in rows(groups(three), ACCURACY, [0.5, 0.9])}
    ours, theirs = found["fedmuon"], found["fedavg"]
    assert ours.against is theirs.group and ours.mark == "better" and theirs.mark == "" and theirs.test is None
    assert ours.efforts[0.5].rounds == (2, 0, 3) and theirs.efforts[0.5].rounds == (3, 0, 3)
    assert ours.efforts[0.5].speed_up == 1.5 and ours.efforts[0.5].megabytes.mean == 6
    assert ours.efforts[0.9].rounds.seeds == 0 and ours.payload == (1, 2) and ours.parameters == 1000
    assert found["50%_of|<a&b>"].last.seeds == 0 and found["50%_of|<a&b>"].status == "1 failed"


def test_targets_are_those_that_are_reached(three):
    assert targets_of(three, ACCURACY) == [0.5]
    assert targets_of(three, ACCURACY, [0.7, 0.6, 0.7]) == [0.6, 0.7]
    aims = [0.3, 0.5, 0.6]
    assert shown_target(rows(groups(three), ACCURACY, aims), aims) == 0.5  # 0.6 is reached by one of three groups


def test_markdown(three):
    lines = table(three, "md").splitlines()
    assert lines[0].startswith("| method | accuracy (%), last round | best by validation | rounds to 50 % |")
    assert "| fedmuon | 61.1 ± 1.2 ▲ | 61.1 ± 1.2 | 2 | 6 | 4 | 1.5 × | 1 | 2 | 1,000 | 3 finished |" in lines
    assert any(line.startswith("| 50%_of\\|&lt;a&b> | – | – |") for line in lines)
    assert len({line.replace("\\|", "").count("|") for line in lines[:5]}) == 1


def test_latex(three):
    text = table(three, "tex")
    assert r"\toprule" in text and r"\bottomrule" in text and text.count(r"\\") == 4
    assert r"50\%\_of\textbar{}\textless{}a\&b\textgreater{} & -- &" in text
    assert r"61.1 $\pm$ 1.2 $\blacktriangle$ &" in text
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len({line.replace(r"\&", "").count("&") for line in body}) == 1


def test_csv(three):
    found = {row["group"]: row for row in csv.DictReader(io.StringIO(table(three, "csv")))}
    ours = found["fedmuon"]
    assert float(ours["last_accuracy"]) == pytest.approx(0.61133, abs=1e-4)
    assert float(ours["rounds_to_0.5"]) == 2 and ours["seeds"] == "3" and ours["reference"] == "fedavg"
    assert 0 < float(ours["p"]) == float(ours["p_adjusted"]) < 0.05
    assert found["50%_of|<a&b>"]["last_accuracy"] == "" and ours["algorithm.name"] == "fedmuon"


def test_a_loss_is_no_per_cent_and_smaller_is_better(three):
    metric = Metric("loss", False)
    text = FORMATS["md"](rows(groups(three), metric, [1.0]), metric, [1.0])
    assert "loss, last round" in text and "| 0.6667 ± 0 |" in text and "rounds to 1 |" in text


def test_all_targets_that_are_asked_for_are_shown(three, tmp_path):
    for kind, unit in (("md", "%"), ("tex", r"\%")):
        text = written(tmp_path, kind, targets=[0.9, 0.4])
        assert text.index(f"rounds to 40 {unit}") < text.index(f"rounds to 90 {unit}")
        assert written(tmp_path, kind).count("rounds to") == 1


def test_what_a_mean_leaves_out_is_told(tmp_path):
    for seed, end in enumerate([0.5, 0.7, None]):
        write_run(tmp_path / f"{seed}", [0.1, end], seed=seed, summary={"machine": f"CPU {seed // 2}"})
    lines = written(tmp_path, "md").splitlines()
    assert lines[2].startswith("| fedmuon | 60.0 ± 14.1 (2 of 3) | 43.3 ± 30.6 | 2 (2 of 3) | 6 (2 of 3) |")
    assert lines[-1].endswith("Seconds are of different machines: CPU 0; CPU 1.")
    assert r"60.0 $\pm$ 14.1 (2 of 3) &" in written(tmp_path, "tex")
    (row,) = csv.DictReader(io.StringIO(written(tmp_path, "csv")))
    assert row["seeds"] == "2"


def test_a_large_speed_up_is_a_plain_number(tmp_path):
    write_run(tmp_path / "a", [0.6] * 120)
    write_run(tmp_path / "b", [0.1] * 119 + [0.6], algorithm="fedavg")
    assert "| 120 × |" in written(tmp_path, "md")
