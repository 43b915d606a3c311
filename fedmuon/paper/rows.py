"""The lines of a table: published beside measured, difference, verdict; empty where nothing was measured."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fedmuon.console import size
from fedmuon.overrides import keyed
from fedmuon.paper import figures
from fedmuon.paper.tables import Sweep, method_of, rows_of, title_of

Line = dict[str, str]
COLUMNS = (
    "protocol", "cell", "method", "published", "measured", "difference", "verdict", "rounds to accuracy",
    "seconds", "MB up", "MB down", "machine",
)  # fmt: skip
COST = (
    "cell", "method", "ms a local step", "GFLOP a local step", "ms of the server a round", "peak memory",
    "up a client", "down a client", "machine",
)  # fmt: skip


def lines(sweeps: Sequence[Sweep], record: Mapping[str, Any]) -> list[Line]:
    """One line a cell, in the order of the tables. Columns that no cell has anything for are left out, but for what was
    measured and how it compares: those stay, empty."""
    cells = {(c["protocol"], c["group"], tuple(c["row"])): c for c in record.get("cells", [])}
    found: list[Line] = []
    cost = bool(sweeps) and sweeps[0].table == "cost"
    for sweep in sweeps:
        for row in rows_of(sweep):
            cell = cells.get((sweep.protocol, sweep.group, row), {"runs": []})
            head = {"protocol": sweep.protocol, "cell": sweep.title, "method": label(sweep, row)}
            found.append({**head, **(_cost(cell) if cost else _accuracy(sweep, row, cell))})
    order = COST if cost else COLUMNS
    kept = {"measured"} | ({"difference", "verdict"} if any("published" in one for one in found) else set())
    filled = [name for name in order if (name in kept and not cost) or any(one.get(name) for one in found)]
    return [{name: one.get(name, "") for name in filled} for one in found]


def label(sweep: Sweep, row: Sequence[str]) -> str:
    """A row for people: the method, and what else varies."""
    rest = [one for one in row if keyed(one)[0] != "algorithm"]
    short = [one.removeprefix("algorithm.").removeprefix("local.").removeprefix("partition.") for one in rest]
    return ", ".join([title_of(_algorithm(sweep, row)), *(one.replace("=", " ", 1) for one in short)])


def notes(sweeps: Sequence[Sweep], record: Mapping[str, Any]) -> list[str]:
    """What to know when reading a table, a sentence each."""
    clean = any(
        sweep.protocol == "clean"
        and not sweep.quick
        and figures.accuracy(sweep.table, sweep.group, method_of(_algorithm(sweep, row)))
        for sweep in sweeps
        for row in rows_of(sweep)
    )
    other = (
        "Clean rows: the published figures were measured under the published protocol (its lists of samples, rates, "
        "normalisation, test images cropped at random); a difference, or a verdict, is one of the protocols as well."
    )
    return [other] * clean + orders(sweeps, record)


def orders(sweeps: Sequence[Sweep], record: Mapping[str, Any]) -> list[str]:
    """For each group: whether the measured methods come in the published order, in one sentence."""
    said = []
    for sweep in (sweep for sweep in sweeps if not sweep.quick):
        here = [c for c in record.get("cells", []) if (c["protocol"], c["group"]) == (sweep.protocol, sweep.group)]
        both = [(c["method"], figures.accuracy(sweep.table, sweep.group, c["method"]), _mean(c)) for c in here]
        known = [(method, figure.value, mean) for method, figure, mean in both if figure and mean is not None]
        if len({method for method, *_ in known}) < 2:
            continue
        published = [title_of(one[0]) for one in sorted(known, key=lambda one: -one[1])]
        measured = [title_of(one[0]) for one in sorted(known, key=lambda one: -one[2])]
        verdict = "kept" if published == measured else f"not kept: {' > '.join(measured)} was measured"
        said.append(f"{sweep.protocol}, {sweep.group}: the published order {' > '.join(published)} is {verdict}.")
    return said


def _algorithm(sweep: Sweep, row: Sequence[str]) -> str:
    return next(value for key, value in map(keyed, (*row, *sweep.overrides)) if key == "algorithm")


def _accuracy(sweep: Sweep, row: Sequence[str], cell: Mapping[str, Any]) -> Line:
    method = method_of(_algorithm(sweep, row))
    figure, mean = None if sweep.quick else figures.accuracy(sweep.table, sweep.group, method), _mean(cell)
    line: Line = {"measured": _measured(cell), "rounds to accuracy": _rounds(sweep, method, cell), **_totals(cell)}
    if figure is not None:
        spread = "" if figure.deviation is None else f" ± {figure.deviation:.2f}"
        line["published"] = f"{figure.value:g}{spread} [{figure.source}]"
    if figure is not None and mean is not None:
        difference = mean - figure.value
        line["difference"] = f"{difference:+.1f}"
        line["verdict"] = "within 1.5" if abs(difference) <= figures.CLOSE else "not within 1.5"
    return line


def _finished(cell: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Runs that came to their end with a test accuracy."""
    ended = [run for run in cell["runs"] if run["status"] == "finished" and run.get("rounds", 0) >= run["of_rounds"]]
    return [run for run in ended if (run.get("last") or {}).get("test/accuracy") is not None]


def _mean(cell: Mapping[str, Any]) -> float | None:
    values = [100 * run["last"]["test/accuracy"] for run in _finished(cell)]
    return statistics.mean(values) if values else None


def _measured(cell: Mapping[str, Any]) -> str:
    """Mean and sample deviation of the last round's test accuracy; what failed or is under way, and why."""
    finished, said = _finished(cell), []
    values = [100 * run["last"]["test/accuracy"] for run in finished]
    if len(values) > 1:
        said.append(f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f} ({len(values)} seeds)")
    elif values:
        said.append(f"{values[0]:.1f}")
    for run in cell["runs"]:
        if run["status"] == "failed":
            said.append(f"seed {run['seed']} failed: {run.get('cause', 'no cause is known')}")
        elif run not in finished:
            said.append(f"seed {run['seed']}: {run['status']}, {run.get('rounds', 0)} of {run['of_rounds']} rounds")
    return "; ".join(said)


def _rounds(sweep: Sweep, method: str, cell: Mapping[str, Any]) -> str:
    """ "50 %: 105 -> 98" for each target: published, measured (median over the seeds); "never" counts as the last."""
    published = {} if sweep.quick else figures.rounds_to(sweep.table, sweep.group, method)
    runs = _finished(cell)
    said = []
    for target in published or _reached(runs):
        was = str(published[target] or "never") if published else ""
        rounds = [run["rounds_to_target"].get(f"{target / 100:g}") for run in runs]
        values = sorted(round if round is not None else 10**9 for round in rounds)
        middle = values[len(values) // 2] if values else None
        now = "" if middle is None else "never" if middle == 10**9 else str(middle)
        said.append(f"{target:g} %: {' → '.join(one for one in (was, now) if one)}")
    return ", ".join(said)


def _reached(runs: Sequence[Mapping[str, Any]]) -> list[float]:
    """Targets (per cent) that some run reached."""
    there = [100 * float(t) for run in runs for t, round in (run.get("rounds_to_target") or {}).items() if round]
    return sorted(set(map(lambda target: round(target, 6), there)))


def _totals(cell: Mapping[str, Any]) -> Line:
    runs = _finished(cell)
    if not runs:
        return {}
    mean = {key: statistics.mean(run[key] for run in runs) for key in ("seconds", "up_bytes", "down_bytes")}
    return {
        "seconds": f"{mean['seconds']:.0f}" if mean["seconds"] >= 10 else f"{mean['seconds']:.1f}",
        "MB up": f"{mean['up_bytes'] / 1e6:.3g}",
        "MB down": f"{mean['down_bytes'] / 1e6:.3g}",
        "machine": ", ".join(dict.fromkeys(run["machine"] for run in runs)),
    }


def _cost(cell: Mapping[str, Any]) -> Line:
    runs = [run for run in cell["runs"] if run["status"] == "finished" and "cost" in run]
    if not runs:
        return {"ms a local step": _measured(cell)}
    run = runs[0]
    cost, clients = run["cost"], run["clients"]
    return {
        "ms a local step": f"{1e3 * cost['seconds_step']:.3g}",
        "GFLOP a local step": f"{cost['flops_step'] / 1e9:.3g}",
        "ms of the server a round": f"{1e3 * cost['seconds_server']:.3g}",
        "peak memory": "–" if cost.get("peak_bytes") is None else size(cost["peak_bytes"]),
        "up a client": size(run["up_bytes"] / clients),
        "down a client": size(run["down_bytes"] / clients),
        "machine": run["machine"],
    }
