"""results/paper_<table>.json: every run that was made for a table, with commit, configuration and machine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fedmuon import devices, rundir
from fedmuon.apart import among, flat, gone
from fedmuon.paper.runner import Planned
from fedmuon.paper.tables import method_of

# Not a part of what was computed, or the name of somebody's folder.
_APART = ("run_dir", "resume", "logger", "callbacks", "checkpoint", "seed", "data.root")
_SEEDS = ("partition.seed", "model.seed", "data.seed")
_KEPT = ("status", "cause", "id", "started", "rounds", "last", "best", "rounds_to_target", "up_bytes", "down_bytes")


def path_of(table: str, quick: bool, folder: Path) -> Path:
    """The file of a table."""
    return folder / f"paper_{table}{'_quick' if quick else ''}.json"


def read(path: Path) -> dict[str, Any]:
    """A record; empty where there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def update(
    path: Path, runs: Sequence[Planned], command: str, *, beside: Path | None = None, trial: bool = False
) -> dict[str, Any]:
    """Write what the runs have come to, beside the cells that are in the record already, and return the record.

    beside: written instead of `path` while a run has not ended, and for a trial; a record whose cells stay the same is
    not written. A run that is recorded in either keeps its commit and machine; one that has not started is left out.
    """
    before = read(path)
    cells = {_key(cell): cell for cell in _flat_cells(before)}
    apart = {_key(cell): cell for cell in _flat_cells(read(beside))} if beside else {}
    for one in runs:
        if not one.summary:
            continue
        cell = _cell(one)
        old = cells.get(_key(cell), {"runs": []})
        known = {run["id"]: run for run in (*apart.get(_key(cell), {"runs": []})["runs"], *old["runs"])}
        entry = _entry(one, known)
        others = [run for run in old["runs"] if run["seed"] != one.seed and old.get("configuration") == _plain(one)]
        cells[_key(cell)] = {**cell, "runs": sorted([*others, entry], key=lambda run: run["seed"])}
    record = _record(before, list(cells.values()), runs, command)
    if beside is not None and (trial or not all(one.ended for one in runs)):
        _write(beside, record)
    else:
        if any(record[key] != before.get(key) for key in ("configuration", "cells")):
            _write(path, record)
        if beside is not None:
            beside.unlink(missing_ok=True)
    return record


def _record(
    before: Mapping[str, Any], cells: list[dict[str, Any]], runs: Sequence[Planned], command: str
) -> dict[str, Any]:
    versions = next((one.summary["versions"] for one in runs if "versions" in one.summary), before.get("versions"))
    common, apart = _common([cell["configuration"] for cell in cells])
    for cell, own in zip(cells, apart, strict=True):
        cell["settings"] = own
        del cell["configuration"]
    return {"command": command, "versions": versions, "configuration": common, "cells": cells}


def _write(path: Path, record: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rundir.write_json(path, record)


def _cell(one: Planned) -> dict[str, Any]:
    sweep, config = one.sweep, one.config
    return {
        "protocol": sweep.protocol,
        "group": sweep.group,
        "row": list(one.row),
        "model": sweep.model,
        "algorithm": str(config.algorithm.name),
        "method": method_of(str(config.algorithm.name)),
        "configuration": _plain(one),
    }


def _entry(one: Planned, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    found = one.summary
    entry = {"seed": one.seed, **{key: found[key] for key in _KEPT if key in found}}
    entry["seconds"] = round(found.get("seconds", 0.0), 1)
    entry["of_rounds"] = int(one.config.federation.rounds)
    for key in ("last", "best"):
        if entry.get(key):
            entry[key] = {name: round(value, 6) for name, value in entry[key].items() if value is not None}
    old = known.get(found["id"], {}) if found.get("id") else {}
    entry["commit"], entry["machine"] = old.get("commit") or commit(), old.get("machine") or machine()
    if (cost := one.folder / "cost.json").exists():
        entry["clients"] = len(rundir.read(one.folder / "clients.jsonl"))
        entry["cost"] = json.loads(cost.read_text(encoding="utf-8"))
    return entry


def _plain(one: Planned) -> dict[str, Any]:
    """The resolved configuration as flat keys, without names of folders."""
    content: Any = OmegaConf.to_container(one.config)
    leaves = dict(flat(content))
    kept = _without(leaves, (*_APART, *_SEEDS)).items()
    return {k: Path(v).name if k.endswith(".path") and k != "data.path" and v else v for k, v in kept}


def _common(configurations: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(what all have alike, what each has beside)."""
    first = configurations[0] if configurations else {}
    same = {k: v for k, v in first.items() if all(k in c and c[k] == v for c in configurations)}
    return same, [{k: v for k, v in one.items() if k not in same} for one in configurations]


def _flat_cells(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Cells of a record, each with its whole configuration."""
    common = record.get("configuration", {})
    whole = [(cell, {**common, **cell["settings"]}) for cell in record.get("cells", [])]
    return [{**cell, "configuration": _without(leaves, gone(leaves))} for cell, leaves in whole]


def _without(leaves: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in leaves.items() if not among(key, keys)}


def _key(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    return cell["protocol"], cell["group"], tuple(cell["row"])


@cache
def commit() -> str:
    """The commit of the code, with -changed where files differ from it; empty outside a repository."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    return git("rev-parse", "--short=12", "HEAD") + ("-changed" if git("status", "--porcelain", "-uno") else "")


@cache
def machine() -> str:
    """Processor, cores, and GPU where there is one."""
    found = devices.machine()
    if not Path("/proc/driver/nvidia").exists():
        return found
    import torch  # takes seconds

    return f"{torch.cuda.get_device_name()}, {found}" if torch.cuda.is_available() else found
