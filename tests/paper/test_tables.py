"""The tables as data: every sweep composes, filters keep what is asked for, rows are those that Hydra runs."""

from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from fedmuon.compose import CONF
from fedmuon.errors import UsageError
from fedmuon.paper import figures
from fedmuon.paper.runner import folder_of, overrides_of, planned
from fedmuon.paper.tables import PROTOCOLS, Setting, chosen, merged, method_of, rows_of, sweep, tables, values_of

FULL = Setting(data="DATA", lists="LISTS")
ALGORITHMS = {file.stem for file in (CONF / "algorithm").glob("*.yaml")}


def every(setting: Setting) -> list:
    return [
        sweep(table, group, protocol, setting)
        for table in tables().values()
        for protocol in table.protocols
        for group in chosen(table, protocol)
        if not (setting.quick and group.quick is None)
    ]


def test_the_tables_are_those_that_the_issue_asks_for() -> None:
    asked = {"cifar100", "ablation", "server", "heterogeneity", "cost", "schedule"}
    assert asked <= set(tables()) and tables()["cifar100"].protocols == PROTOCOLS
    switches = next(one for one in every(FULL) if (one.group, one.protocol) == ("switches", "clean"))
    assert len(rows_of(switches)) == 8
    measured = next(one for one in every(FULL) if one.table == "cost" and one.group == "resnet18")
    ours = {name for name in ALGORITHMS if not name.endswith("_published")}
    assert {row[0].removeprefix("algorithm=") for row in rows_of(measured)} >= ours


@pytest.mark.parametrize("quick", [False, True])
def test_sweeps_name_their_protocol_and_algorithms_that_exist(quick: bool) -> None:
    for one in every(Setting(quick=quick, data="DATA", lists="LISTS")):
        assert f"paper={one.protocol}" in one.overrides and (one.model == "mlp") == quick
        keys = [override.partition("=")[0] for override in one.overrides]
        assert len(keys) == len(set(keys)), one
        names = [v for o in one.overrides if o.startswith("algorithm=") for v in values_of(o)]
        assert names and set(names) <= ALGORITHMS
        published = [name for name in names if f"{name}_published" in ALGORITHMS]
        assert not (published if one.protocol == "published" else [n for n in names if n.endswith("_published")])


@pytest.mark.parametrize("table, group, protocol", [
    ("cifar100", "resnet18/0.1", "published"), ("ablation", "all three", "published"), ("server", "adaptive", "clean"),
    ("ablation", "switches, equal step", "clean"), ("heterogeneity", "1000 clients at 1 %", "clean"),
    ("schedule", "schedule", "clean"), ("cost", "polar resnet18", "clean"), ("search73", "vector rate", "published"),
])  # fmt: skip
def test_hydra_runs_the_rows_of_a_sweep_and_the_configuration_is_right(table: str, group: str, protocol: str) -> None:
    (found,) = chosen(tables()[table], protocol, cells=[group])
    one = sweep(tables()[table], found, protocol, Setting(quick=True))
    runs = planned(one, 1, Path("out"))
    assert [run.row for run in runs] == rows_of(one) and {run.seed for run in runs} == {0}
    for run in runs:
        for key, value in (pair.split("=") for pair in run.row):
            node = OmegaConf.select(run.config, key)
            assert (node.name if OmegaConf.is_config(node) else node) == yaml.safe_load(value)
    assert len({run.folder for run in runs}) == len(runs) and all(
        run.folder.parent == folder_of(one, Path("out")) for run in runs
    )
    assert all(run.config.protocol == protocol and run.config.model.name == "mlp" for run in runs)
    if group == "switches, equal step":
        (base,) = chosen(tables()[table], protocol, cells=["switches"])
        full = planned(sweep(tables()[table], base, protocol, Setting(quick=True)), 1, Path("out"))[0]
        assert {run.config.local.lr for run in runs} == {full.config.local.lr / 2}
        assert {run.config.algorithm.adamw.lr for run in runs} == {full.config.algorithm.adamw.lr / 2}
    if table == "cost":
        assert runs[0].config.engine.name == "sequential" and "cost" in runs[0].config.callbacks


def test_an_equal_step_is_half_of_each_rate_that_is_set() -> None:
    (group,) = chosen(tables()["ablation"], "published", cells=["switches, equal step"])
    found = overrides_of(sweep(tables()["ablation"], group, "published", Setting(lists="L")), 1)
    assert "local.lr=0.015" in found and "algorithm.adamw.lr=null" in found  # which is local.lr


def test_the_full_published_table_needs_the_lists_and_takes_overrides() -> None:
    table = tables()["cifar100"]
    (group,) = chosen(table, "published", cells=["vit_tiny/0.6"], methods=["fedmuon", "fedavg"])
    with pytest.raises(UsageError, match="needs the authors"):
        sweep(table, group, "published", Setting())
    one = sweep(table, group, "published", Setting(lists="L", rounds=7, device="cpu", extra=("local.lr=0.1,0.2",)))
    assert overrides_of(one, 2) == [
        "paper=published", "model=vit_tiny", "logger=none", "partition.path=L/cifar100-dirichlet0.6-100x500.npz",
        "algorithm=fedavg,fedmuon_published", "federation.rounds=7", "trainer.accelerator=cpu", "local.lr=0.1,0.2",
        "seed=0,1",
    ]  # fmt: skip


def test_filters_and_what_they_refuse() -> None:
    table = tables()["ablation"]
    assert {g.name for g in chosen(table, "published", asked=False)} == {"decay", "nesterov", "shape", "all three"}
    assert "switches" in {g.name for g in chosen(table, "published")}
    assert not chosen(tables()["search73"], "clean")
    for given in ({"cells": ["resnet18/0.3"]}, {"methods": ["fedmuonn"]}):
        with pytest.raises(UsageError, match="is not in this table"):
            chosen(tables()["cifar100"], "clean", **given)


def test_one_row_of_a_group_is_the_same_row_as_among_all_of_them() -> None:
    """So that what is run by itself is found where the whole table is shown."""
    for name, cells, more in (("cifar100", "resnet18/0.1", {"methods": ["fedmuon"]}), ("search73", "Muon rate", {})):
        table = tables()[name]
        (whole,), (part,) = chosen(table, "published", cells=[cells]), chosen(table, "published", cells=[cells], **more)
        extra = () if more else ("algorithm.lr_scale=2",)
        rows = rows_of(sweep(table, part, "published", Setting(lists="L", extra=extra)))
        assert len(rows) == 1 and rows[0] in rows_of(sweep(table, whole, "published", FULL))


def test_of_overrides_with_one_key_the_last_counts_and_values_stay_whole() -> None:
    assert merged(["a=1", "b=2"], ["a=3", "+c=4"], ["c=5"]) == ["a=3", "b=2", "c=5"]
    assert values_of("model.hidden=[1,2],[3]") == ["[1,2]", "[3]"] and values_of("a={b:1,c:2}") == ["{b:1,c:2}"]


def test_every_published_figure_belongs_to_a_cell_and_has_a_source() -> None:
    table, letters = tables()["cifar100"], figures.sources()
    there = {
        (group.name, method_of(value))
        for protocol in PROTOCOLS
        for group in chosen(table, protocol)
        for o in group.vary[protocol]
        for value in values_of(o)
    }
    for group, methods in figures.content()["accuracy"]["cifar100"].items():
        for method in methods:
            found = figures.accuracy("cifar100", group, method)
            assert (group, method) in there and found is not None and found.source in letters
    assert figures.accuracy("cifar100", "resnet18/0.1", "fedmuon") == figures.Figure(73.05, 0.16, "R")
    assert figures.accuracy("search73", "grid", "fedmuon") == figures.Figure(73.05, 0.16, "R")
    assert figures.rounds_to("cifar100", "vit_tiny/0.1", "fedmuon")[45] == 216
    assert figures.rounds_to("cifar100", "resnet18/0.1", "local_muon")[70] is None
