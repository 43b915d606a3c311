"""Lines of a table from a record: verdicts, orders, failures, empty cells; and the forms they are written in."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fedmuon import rundir
from fedmuon.paper import docs, rates, record, render, rows
from fedmuon.paper.runner import Planned
from fedmuon.paper.tables import Setting, Sweep, chosen, sweep, tables

ROOT = Path(__file__).parents[2]
MACHINE = "a machine, 2 cores"


def run(seed: int, accuracy: float | None, status: str = "finished", **more: Any) -> dict[str, Any]:
    last = None if accuracy is None else {"test/accuracy": accuracy / 100, "val/accuracy": accuracy / 100}
    return {
        "seed": seed, "status": status, "last": last, "rounds": 300, "of_rounds": 300, "seconds": 90.0, "up_bytes": 2e6,
        "down_bytes": 3e6, "rounds_to_target": {"0.4": 50, "0.5": None}, "machine": MACHINE, "commit": "c", "id": "x",
        **more,
    }  # fmt: skip


def cell(
    algorithm: str, *runs: dict[str, Any], protocol: str = "published", group: str = "resnet18/0.1"
) -> dict[str, Any]:
    method = algorithm.removesuffix("_published")
    return {
        "protocol": protocol,
        "group": group,
        "row": [f"algorithm={algorithm}"],
        "method": method,
        "runs": list(runs),
    }


def of_cifar100(quick: bool = False) -> Sweep:
    (group,) = chosen(tables()["cifar100"], "published", cells=["resnet18/0.1"])
    return sweep(tables()["cifar100"], group, "published", Setting(quick=quick, lists="L"))


def test_published_beside_measured() -> None:
    cells = [
        cell("fedavg", run(0, 59.0), run(1, 60.0)),
        cell("fedmuon_published", run(0, 70.0)),
        cell("local_muon_published", run(0, None, "failed", cause="RoundError: round 3: client 7 sent NaN")),
        cell("fedcm", run(0, 30.0, "interrupted", rounds=120)),
    ]
    lines = {line["method"]: line for line in rows.lines([of_cifar100()], {"cells": cells})}
    assert len(lines) == 6 and lines["SCAFFOLD"]["measured"] == "" == lines["SCAFFOLD"]["seconds"]
    fedavg = lines["FedAvg"]
    assert (fedavg["published"], fedavg["measured"]) == ("60.25 ± 0.20 [R]", "59.5 ± 0.7 (2 seeds)")
    assert (fedavg["difference"], fedavg["verdict"], fedavg["MB up"], fedavg["MB down"]) == (
        "-0.8",
        "within 1.5",
        "2",
        "3",
    )
    assert fedavg["rounds to accuracy"].startswith("40 %: 55 → 50, 50 %: 103 → never, 60 %: 270 →")
    assert (lines["FedMuon"]["difference"], lines["FedMuon"]["verdict"]) == ("-3.0", "not within 1.5")
    assert lines["Local Muon"]["measured"] == "seed 0 failed: RoundError: round 3: client 7 sent NaN"
    assert (
        lines["Local Muon"]["verdict"] == "" and lines["FedCM"]["measured"] == "seed 0: interrupted, 120 of 300 rounds"
    )
    assert rows.orders([of_cifar100()], {"cells": cells}) == [
        "published, resnet18/0.1: the published order FedMuon > FedAvg is kept."
    ]
    turned = [cell("fedavg", run(0, 71.0)), cell("fedmuon_published", run(0, 70.0))]
    assert "not kept: FedAvg > FedMuon was measured" in rows.orders([of_cifar100()], {"cells": turned})[0]


def test_quick_cells_are_not_held_against_published_figures() -> None:
    (fedavg, *_) = rows.lines([of_cifar100(quick=True)], {"cells": [cell("fedavg", run(0, 59.0))]})
    assert fedavg["cell"] == "mlp/0.1" and fedavg["measured"] == "59.0" and not {"published", "verdict"} & set(fedavg)
    assert not rows.orders([of_cifar100(quick=True)], {"cells": [cell("fedavg", run(0, 59.0))]})


def test_a_clean_row_says_that_the_published_figure_is_of_another_protocol() -> None:
    (group,) = chosen(tables()["cifar100"], "clean", cells=["resnet18/0.1"])
    clean, quick = (sweep(tables()["cifar100"], group, "clean", Setting(quick=quick)) for quick in (False, True))
    (note,) = rows.notes([of_cifar100(), clean], {})
    assert note.startswith("Clean rows: the published figures were measured under the published protocol")
    assert rows.notes([of_cifar100()], {}) == rows.notes([quick], {}) == []


def test_memory_that_was_not_measured_is_a_dash() -> None:
    cost = {"seconds_step": 0.1, "flops_step": 1e9, "seconds_server": 0.1}
    found = [
        rows._cost({"runs": [run(0, 50.0, clients=2, cost={**cost, "peak_bytes": peak})]}) for peak in (None, 2_000_000)
    ]
    assert [line["peak memory"] for line in found] == ["–", "2 MB"]


def test_an_empty_record_gives_published_figures_and_empty_cells() -> None:
    lines = rows.lines([of_cifar100()], {})
    assert [line["method"] for line in lines] == ["FedAvg", "SCAFFOLD", "FedCM", "Local AdamW", "Local Muon", "FedMuon"]
    assert all(line["published"] for line in lines)
    assert {line[key] for line in lines for key in ("measured", "difference", "verdict")} == {""}
    assert lines[0]["rounds to accuracy"].startswith("40 %: 55, 50 %: 103,")


def test_the_three_forms_escape_what_they_must() -> None:
    lines = [{"a_b": "1 | 2 & 50 % ± <b>", "c": "→"}]
    assert render.markdown(lines) == "| a_b | c |\n| --- | --- |\n| 1 \\| 2 & 50 % ± &lt;b> | → |"
    tex = render.latex("T_1", lines, ["note"])
    assert r"a\_b & c \\" in tex and r"1 \textbar{} 2 \& 50 \% $\pm$ \textless{}b\textgreater{} & $\to$ \\" in tex
    assert r"\toprule" in tex and r"\caption{T\_1}" in tex
    page = render.html("T & 1", lines, ["<note>"])
    assert (
        "1 | 2 &amp; 50 % ± &lt;b&gt;" in page and "<title>T &amp; 1</title>" in page and "<p>&lt;note&gt;</p>" in page
    )
    assert render.markdown([]) == ""


def test_rates_are_those_of_the_best_validation_accuracy_and_never_of_a_failure(tmp_path: Any) -> None:
    grid = Sweep(
        "rates",
        "clean",
        "g",
        "resnet18",
        ("algorithm=fedavg,fedmuon", "local.lr=0.1,0.3,1", "algorithm.weight_decay=0"),
    )

    def tried(algorithm: str, lr: str, one: dict[str, Any]) -> dict[str, Any]:
        return {"protocol": "clean", "group": "g", "row": [f"algorithm={algorithm}", f"local.lr={lr}"], "runs": [one]}

    cells = [
        tried("fedavg", "0.1", run(0, 40.0)),
        tried("fedavg", "0.3", run(0, 45.0)),
        tried("fedavg", "1", run(0, 90.0, "failed")),
        tried("fedmuon", "0.1", run(0, 40.0)),
    ]
    assert rates.best(grid, {"cells": cells}) == {"fedavg": ["local.lr=0.3"]}  # the grid of fedmuon is not finished
    (path,) = rates.write(grid, {"cells": cells}, tmp_path)
    assert path.name == "clean_resnet18_fedavg.yaml" and path.read_text().endswith("local: {lr: 0.3}\n")
    assert "inside the grid" in path.read_text()
    cell = Sweep("cifar100", "clean", "resnet18/0.1", "resnet18", ("algorithm=fedavg,fedmuon",))
    assert rates.unsearched(cell, tmp_path) == ["fedmuon"] and rates.unsearched(grid, tmp_path) == []


def test_what_all_cells_have_alike_is_recorded_once() -> None:
    common, apart = record._common([{"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 5}])
    assert common == {"a": 1} and apart == [{"b": 2, "c": 3}, {"b": 5}]


def test_keys_of_an_earlier_version_are_no_part_of_a_record() -> None:
    cell = {"settings": {"trainer.devices": 1, "local.lr": 0.1}}
    (found,) = record._flat_cells({"configuration": {"federation.rounds": 3}, "cells": [cell]})
    assert found["configuration"] == {"federation.rounds": 3, "local.lr": 0.1}


def test_a_record_is_written_when_all_runs_have_ended_and_only_where_it_changes(tmp_path: Any) -> None:
    config = OmegaConf.create({"algorithm": {"name": "fedavg"}, "federation": {"rounds": 3}, "local": {"lr": 0.1}})
    planned = [Planned(of_cifar100(), (f"local.lr={lr}",), 0, tmp_path / lr, config) for lr in ("1", "2")]
    results, beside = tmp_path / "results" / "paper.json", tmp_path / "outputs" / "paper.json"

    def update(**how: bool) -> None:
        record.update(results, planned, "command", beside=beside, **how)

    def end(one: Planned, status: str) -> None:
        one.folder.mkdir(exist_ok=True)
        rundir.write_json(one.folder / "summary.json", {"status": status, "rounds": 3, "id": one.row[0]})

    end(planned[0], "finished")
    for status in (None, "running", "interrupted"):
        if status:
            end(planned[1], status)
        update()
        assert beside.exists() and not results.exists()
    found = record.read(beside)
    found["cells"][0]["runs"][0]["commit"] = "of then"
    rundir.write_json(beside, found)
    end(planned[1], "failed")
    update()
    assert not beside.exists() and record.read(results)["cells"][0]["runs"][0]["commit"] == "of then"
    written = results.stat().st_mtime_ns
    record.update(results, planned, "another command", beside=beside)  # with nothing left to do
    end(planned[1], "finished")
    update(trial=True)
    assert results.stat().st_mtime_ns == written and beside.exists()
    update()
    assert [one["runs"][0]["status"] for one in record.read(results)["cells"]] == ["finished", "finished"]


def test_the_page_is_filled_between_its_marks(tmp_path: Any) -> None:
    text = "before\n<!-- trials -->\nold\n<!-- end -->\nbetween\n<!-- schedule -->\n<!-- end -->\nafter\n"
    made = docs.generated(text, tmp_path)
    assert "old" not in made and made.startswith("before\n") and made.endswith("after\n") and "\nbetween\n" in made
    assert (
        "| 71.9 | 73.05 |" in made and "reproduce.py --table schedule" in made and "| FedMuon, schedule step |" in made
    )
    assert docs.generated(made, tmp_path) == made


def test_the_page_of_the_docs_is_what_results_say() -> None:
    page = (ROOT / "docs" / "reproduction.md").read_text()
    assert docs.generated(page, ROOT / "results") == page, "run python scripts/reproduce.py --docs"
