"""Rates of the clean protocol: what one grid under one budget found for a method, as a file of conf/paper/rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmuon import rundir
from fedmuon.overrides import keyed
from fedmuon.paper.tables import Sweep, rows_of, values_of


def best(sweep: Sweep, record: Mapping[str, Any]) -> dict[str, list[str]]:
    """algorithm -> the overrides whose run had the best validation accuracy in the last round.

    Only methods whose whole grid has been run; a run that failed counts as 0, so that a divergence is never chosen.
    """
    cells = {tuple(c["row"]): c for c in record["cells"] if c["group"] == sweep.group and c["protocol"] == "clean"}
    found: dict[str, list[tuple[float, tuple[str, ...]]]] = {}
    fixed = [one for one in sweep.overrides if keyed(one)[0] == "algorithm" and "," not in one]
    missing = set()
    for row in rows_of(sweep):
        (algorithm,) = [value for key, value in map(keyed, (*row, *fixed)) if key == "algorithm"]
        runs = cells.get(row, {"runs": []})["runs"]
        if not runs or any(run["status"] not in ("finished", "failed") for run in runs):
            missing.add(algorithm)
            continue
        found.setdefault(algorithm, []).append((min(map(_score, runs)), row))
    return {
        algorithm: [one for one in max(tried)[1] if keyed(one)[0] != "algorithm"]
        for algorithm, tried in found.items()
        if algorithm not in missing
    }


def write(sweep: Sweep, record: Mapping[str, Any], folder: Path) -> list[Path]:
    """One file a method, clean_<model>_<algorithm>.yaml; those that were written."""
    made = []
    for algorithm, chosen in best(sweep, record).items():
        tree: dict[str, dict[str, str]] = {}
        for one in chosen:
            key, value = keyed(one)
            group, _, leaf = key.partition(".")
            tree.setdefault(group, {})[leaf] = value
        body = "".join(f"{group}: {{{_pairs(keys)}}}\n" for group, keys in tree.items())
        path = folder / f"clean_{sweep.model}_{algorithm}.yaml"
        folder.mkdir(parents=True, exist_ok=True)
        found = f"# Found by scripts/reproduce.py --table rates: {_edges(sweep, chosen)}"
        rundir.write(path, f"# @package _global_\n{found}\n{body}")
        made.append(path)
    return made


def unsearched(sweep: Sweep, folder: Path) -> list[str]:
    """The algorithms of a clean sweep that run at their own files' rates, since no search has left any in `folder`."""
    if sweep.protocol != "clean" or sweep.table in ("rates", "cost"):
        return []
    names = [name for one in sweep.overrides if keyed(one)[0] == "algorithm" for name in values_of(one)]
    return [name for name in names if not (folder / f"clean_{sweep.model}_{name}.yaml").exists()]


def _score(run: Mapping[str, Any]) -> float:
    """Validation accuracy in the last round."""
    return (run.get("last") or {}).get("val/accuracy") or 0.0 if run["status"] == "finished" else 0.0


def _edges(sweep: Sweep, chosen: Sequence[str]) -> str:
    """Says where a value is the end of its grid: a better one may lie beyond."""
    ends = []
    for one in chosen:
        key, value = keyed(one)
        tried = [keyed(given) for row in rows_of(sweep) for given in row]
        numbers = sorted({float(number) for name, number in tried if name == key})
        if float(value) in (numbers[0], numbers[-1]) and float(value) != 0:
            ends.append(f"{key} is the end of its grid")
    return "; ".join(ends) or "inside the grid"


def _pairs(keys: Mapping[str, str]) -> str:
    return ", ".join(f"{key}: {value}" for key, value in keys.items())
