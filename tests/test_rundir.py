"""Run directories: names that never collide, files that are never half there, results from rows."""

import json
import math
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from omegaconf import OmegaConf

from fedmuon import rundir
from fedmuon.cli import checked_jobs
from fedmuon.data import cache
from fedmuon.errors import UsageError
from fedmuon.store import DiskStore


def test_numbered_directories_never_collide(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: rundir.numbered(tmp_path / "outputs", "fedavg-iid"), range(24)))
    assert {path.name for path in made} == {f"fedavg-iid-{n}" for n in range(1, 25)}
    (tmp_path / "outputs" / "fedavg-iid-note").mkdir()
    (tmp_path / "outputs" / "fedavg-iid-40").mkdir()
    assert rundir.numbered(tmp_path / "outputs", "fedavg-iid").name == "fedavg-iid-41"


def test_claim_takes_new_and_empty_directories_only(tmp_path):
    assert rundir.claim(tmp_path / "a" / "b").is_dir() and rundir.claim(tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(UsageError, match=r"^run_dir="):
            rundir.claim(path)


@pytest.mark.parametrize("key", ["run_dir", "resume"])
def test_a_folder_that_is_no_utf8_is_refused_before_anything_is_done(tmp_path, monkeypatch, key):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "caf\udce9"  # as a byte is decoded that is none
    if key == "resume":
        run.mkdir()
        (run / "config.yaml").write_text(OmegaConf.to_yaml(checked_jobs([])[0].saved))
    with pytest.raises(UsageError, match=rf"^{key}='.*caf\\udce9': is no UTF-8, .*; name another folder$"):
        checked_jobs([f"{key}='{run}'", "logger=none"])
    with pytest.raises(UsageError, match=r"^tune_dir='a\\udce9': is no UTF-8"):
        rundir.usable("tune_dir", Path("a\udce9"))
    rundir.usable("tune_dir", Path("läuft"))


def test_lines_survive_a_cut_and_are_cut_back(tmp_path):
    file = tmp_path / "metrics.jsonl"
    assert rundir.read(file) == []
    rundir.append(file, [{"round": 1, "loss": 0.5}, {"round": 2, "loss": math.nan}])
    rundir.append(file, [{"round": 3, "loss": math.inf}])
    with file.open("a") as opened:
        opened.write('{"round": 4, "lo')
    assert rundir.read(file) == [{"round": 1, "loss": 0.5}, {"round": 2, "loss": None}, {"round": 3, "loss": None}]
    assert [row["round"] for row in rundir.cut_back(file, 2)] == [1, 2]
    assert file.read_text() == '{"round": 1, "loss": 0.5}\n{"round": 2, "loss": null}\n'
    assert rundir.cut_back(tmp_path / "absent.jsonl", 2) == []
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_damaged_line_costs_its_own_round_alone(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"round": 1}\n{"rou\xff\n3\n{"round": 4}\n\0\0\n{"round": 6}\n{"round": 7}\n')
    found = [row["round"] for row in rundir.cut_back(file, 6)]
    assert found == [1, 4, 6] and file.read_text() == '{"round": 1}\n{"round": 4}\n{"round": 6}\n'
    assert rundir.lost("a", range(1, 9), found) == (
        "a: lacks rounds (was a copy cut short?): 2 to 3, 5, 7 to 8; totals and curves leave them out"
    )
    assert rundir.lost("a", [1, 4], found) == ""


def test_of_several_rows_of_a_round_or_of_a_client_in_it_the_last_counts(tmp_path):
    copied = tmp_path / "metrics.jsonl"
    rundir.append(copied, [*ROWS[:3], *ROWS[:2], {**ROWS[2], "comm/up_bytes": 6}, ROWS[3]])
    found = rundir.results(rundir.read(copied), "acc", "max", [])
    assert (found["rounds"], found["up_bytes"], found["down_bytes"], found["seconds"]) == (4, 16, 28, 4.0)
    assert [row["round"] for row in rundir.cut_back(copied, 3)] == [1, 2, 3] and copied.read_text().count("\n") == 3
    clients = tmp_path / "clients.jsonl"
    of_round = [{"round": 1, "client": 4}, {"round": 1, "client": 2, "steps": 1}]
    rundir.append(clients, [*of_round, {"round": 2, "client": 4}, {"round": 1, "client": 2, "steps": 3}])
    rundir.tabulate_clients(tmp_path)
    assert pq.read_table(tmp_path / "clients.parquet").to_pylist() == [
        {"round": 1, "client": 4, "steps": None},
        {"round": 1, "client": 2, "steps": 3},
        {"round": 2, "client": 4, "steps": None},
    ]


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o002])
def test_what_others_may_read_is_as_it_is_with_every_new_file(tmp_path, umask):
    """Also of files that safetensors writes, which are their owner's alone."""
    before = os.umask(umask)
    try:
        rundir.write(tmp_path / "text", "")
        cache.save(tmp_path / "entry", {"x": torch.zeros(2)}, {})
        DiskStore(tmp_path).put(3, {"control": {"w": torch.zeros(2)}}, 1)
    finally:
        os.umask(before)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.rglob("*") if file.is_file()}
    assert modes == dict.fromkeys(("text", "entry", "1.safetensors"), 0o666 & ~umask)


def test_whole_files_are_replaced_or_left(tmp_path):
    file = tmp_path / "summary.json"
    rundir.write_json(file, {"a": [1.0, math.nan], "b": {"c": -math.inf}})
    assert json.loads(file.read_text()) == {"a": [1.0, None], "b": {"c": None}}
    with pytest.raises(TypeError):
        rundir.write_json(file, {"a": object()})
    assert json.loads(file.read_text())["a"] == [1.0, None] and list(tmp_path.iterdir()) == [file]


ROWS = [
    {"round": 1, "val/acc": 0.2, "test/acc": 0.3, "comm/up_bytes": 5, "comm/down_bytes": 7, "time/total": 1.0},
    {"round": 2, "val/acc": 0.6, "test/acc": 0.5, "comm/up_bytes": 5, "comm/down_bytes": 7, "time/total": 2.0},
    {"round": 3, "val/acc": 0.6, "test/acc": 0.8, "comm/up_bytes": 5, "comm/down_bytes": 7, "time/total": 3.0},
    {"round": 4, "aggregation/skipped": 1.0, "comm/up_bytes": 0, "comm/down_bytes": 7, "time/total": 4.0},
]


def test_results_select_by_validation_alone():
    found = rundir.results(ROWS, "acc", "max", [0.4, 0.9])
    assert found["best"]["round"] == 2 and found["best"]["test/acc"] == 0.5  # the earlier of two equal ones
    assert found["last"]["round"] == 3 and found["rounds"] == 4 and found["skipped_rounds"] == [4]
    assert found["rounds_to_target"] == {"0.4": 2, "0.9": None}
    assert (found["up_bytes"], found["down_bytes"], found["seconds"]) == (15, 28, 4.0)
    smallest = rundir.results(ROWS, "acc", "min", [0.3])
    assert smallest["best"]["round"] == 1 and smallest["rounds_to_target"] == {"0.3": 1}


def test_a_target_is_reached_by_its_value_in_float32():
    rows = [{"round": 1, "test/acc": 0.699}, {"round": 2, "test/acc": 0.699999988079071}]  # 1400 of 2000
    assert rundir.results(rows, "acc", "max", [0.7, 0.70001])["rounds_to_target"] == {"0.7": 2, "0.70001": None}
    losses = [{"round": 1, "test/loss": 0.100001}, {"round": 2, "test/loss": 0.10000000149011612}]
    assert rundir.results(losses, "loss", "min", [0.1])["rounds_to_target"] == {"0.1": 2}


def test_results_without_validation_or_without_rows():
    rows = [{"round": 1, "test/acc": 0.3}]
    found = rundir.results(rows, "acc", "max", [])
    assert found["best"] is None and found["last"]["test/acc"] == 0.3 and found["selection"].startswith("none")
    empty = rundir.results([], "acc", "max", [0.5])
    assert empty["rounds"] == 0 and empty["last"] is None and empty["rounds_to_target"] == {"0.5": None}


def test_clients_become_a_table_whatever_columns_later_rounds_add(tmp_path):
    rundir.append(tmp_path / "clients.jsonl", [{"round": 1, "client": 4}, {"round": 2, "client": 5, "late": 0.5}])
    rundir.tabulate_clients(tmp_path)
    table = pq.read_table(tmp_path / "clients.parquet").to_pylist()
    assert table == [{"round": 1, "client": 4, "late": None}, {"round": 2, "client": 5, "late": 0.5}]


def test_a_reader_or_a_kill_never_meets_half_a_file(tmp_path, monkeypatch):
    (tmp_path / "clients.jsonl").write_text('{"round": 1, "client": 0}\n')
    rundir.tabulate_clients(tmp_path)
    whole = (tmp_path / "clients.parquet").read_bytes()

    def fails(table, path):
        Path(path).write_bytes(b"PAR1 half")
        raise OSError("disk full")

    monkeypatch.setattr("pyarrow.parquet.write_table", fails)
    with pytest.raises(OSError, match="disk full"):
        rundir.tabulate_clients(tmp_path)
    assert (tmp_path / "clients.parquet").read_bytes() == whole
    assert sorted(file.name for file in tmp_path.iterdir()) == ["clients.jsonl", "clients.parquet"]


@pytest.mark.parametrize(
    "text", ["{", "[]", "null", '"x"', '{"rounds": "x", "status": "finished"}', '{"status": 3}', '{"last": []}']
)
def test_a_damaged_summary_is_told_in_one_line(text, tmp_path):
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(UsageError, match=r"summary\.json: is damaged .* remove it"):
        rundir.summary(tmp_path)
