"""How long a plan will take: from earlier results where there are any, else from a short measurement."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

from fedmuon import rundir
from fedmuon.paper import record
from fedmuon.paper.runner import Planned
from fedmuon.paper.tables import merged, method_of

TEST, VALIDATION = 10_000, 5_000  # images of CIFAR-100 that are evaluated in a round
Paces = dict[tuple[str, str], float]  # (model, method) -> seconds a round


@dataclass(frozen=True)
class Estimate:
    """seconds: of training and evaluation that is left; None where nothing is known. source: where that is from."""

    seconds: float | None
    source: str


def estimate(runs: Sequence[Planned], results: Path, measures: bool) -> Estimate:
    """What is left of the runs, one after the other."""
    left = [one for one in runs if not one.finished]
    if not left:
        return Estimate(0.0, "nothing is left")
    paces, source = _earlier(_recorded(results)), "earlier results"
    if {(one.sweep.model, _method(one)) for one in left} - paces.keys():
        own = {key: value for one in runs for key, value in _own_pace(one).items()}
        paces |= own
    missing = {one.sweep.model: one for one in left if (one.sweep.model, _method(one)) not in paces}
    for model, one in missing.items():
        if not measures:
            return Estimate(None, "unknown: no earlier results, and nothing was measured")
        pace = _measured(one)
        if pace is None:
            return Estimate(None, "unknown: no earlier results, and a short measurement failed")
        source = f"a short measurement ({_method(one)})"
        for other in left:
            paces.setdefault((model, _method(other)), pace)
    seconds = sum(
        paces[one.sweep.model, _method(one)] * (one.config.federation.rounds - one.rounds_done) for one in left
    )
    return Estimate(seconds, source)


def _recorded(results: Path) -> list[Mapping[str, Any]]:
    files = [path for path in sorted(results.glob("paper_*.json")) if not path.name.startswith("paper_cost")]
    return [cell for path in files for cell in record.read(path).get("cells", [])]


def _earlier(cells: Iterable[Mapping[str, Any]]) -> Paces:
    """Seconds a round of what was recorded on this machine."""
    here = record.machine()
    found: dict[tuple[str, str], list[float]] = {}
    for cell in cells:
        for run in cell["runs"]:
            if run["machine"] == here and run.get("rounds"):
                found.setdefault((cell["model"], cell["method"]), []).append(run["seconds"] / run["rounds"])
    return {key: median(values) for key, values in found.items()}


def _own_pace(one: Planned) -> Paces:
    rows = rundir.read(one.folder / "metrics.jsonl")
    return {(one.sweep.model, _method(one)): rows[-1]["time/total"] / rows[-1]["round"]} if rows else {}


def _method(one: Planned) -> str:
    return method_of(str(one.config.algorithm.name))


def _measured(one: Planned) -> float | None:
    """Seconds of a round, from two rounds of a run that is thrown away: of a large model two steps of one client."""
    if one.sweep.quick:
        rows = _tried(one, ["federation.rounds=2", "seed=0"])
        return rows[-1]["time/total"] / 2 if rows else None
    small = ["federation.rounds=2", "federation.cohort=1", "local.steps=2", "local.epochs=null"]
    small += ["trainer.limit_val_batches=1", "seed=0", "evaluation.batch_size=500"]
    rows = _tried(one, small)
    if not rows:
        return None
    row = rows[-1]
    local, federation = one.config.local, one.config.federation
    cohort = federation.cohort if isinstance(federation.cohort, int) else ceil(federation.cohort * federation.clients)
    steps = local.steps or 50
    splits, images = (2, TEST + VALIDATION) if one.config.data.validation else (1, TEST)
    an_image = (row["time/round"] - row["time/train"]) / (splits * 500)
    return row["time/train"] / 2 * steps * cohort + an_image * images


def _tried(one: Planned, small: Sequence[str]) -> list[dict[str, Any]]:
    """The rounds of a run with some overrides replaced; none, and the reason on standard error, where it failed."""
    fixed = [o for o in merged(one.sweep.overrides, one.row, small) if "{half}" not in o]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "fedmuon", f"run_dir={run}", *fixed]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"the measurement failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}", file=sys.stderr)
            return []
        return rundir.read(run / "metrics.jsonl")


def duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
