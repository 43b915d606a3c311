"""Compare methods fairly: two constants of each from a grid of one size on the validation split, then fresh seeds.

    python scripts/compare.py [--methods fedmuon fedavg ...] [--seeds 3] [--jobs 2] [--experiment main]

Each method gets the same number of trial runs (seed 0, selected by validation accuracy in the last round); what is
chosen is then run with every seed. Underneath are Hydra sweeps, so that a second call goes on where the first stopped.
Prints a Markdown table and writes results/compare_<experiment>.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fedmuon import rundir

RATES = (0.01, 0.03, 0.1, 0.3)
# The second constant of a method, two values each: the rate of what is no matrix, the rate of the server, or a clip.
SECOND = {
    "fedmuon": ("algorithm.adamw.lr", (0.003, 0.01)),
    "local_muon": ("algorithm.adamw.lr", (0.003, 0.01)),
    "fedadam": ("server.lr", (0.003, 0.01)),
    "fedavg": ("local.clip", (1.0, 10.0)),
}


def sweep(folder: Path, overrides: Sequence[str]) -> list[Path]:
    """Run (or finish, or only read) a sweep; its run directories, those of failed jobs (diverged ones) included."""
    command = [sys.executable, "-m", "fedmuon", "-m", f"hydra.sweep.dir={folder}", "logger=none", *overrides]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return sorted(path.parent for path in folder.glob("*/summary.json"))


def search(method: str, experiment: str, folder: Path) -> dict[str, float]:
    """The two constants with the best validation accuracy in the last round; a run that failed counts as 0."""
    key, values = SECOND[method]
    runs = sweep(
        folder / "search" / method,
        [f"experiment={experiment}", f"algorithm={method}", f"local.lr={_list(RATES)}", f"{key}={_list(values)}"],
    )
    best = max(runs, key=lambda run: (rundir.summary(run).get("last") or {}).get("val/accuracy") or 0.0)
    config = OmegaConf.load(best / "config.yaml")
    chosen = {name: float(OmegaConf.select(config, name)) for name in ("local.lr", key)}
    print(f"{method}: {chosen} of {len(runs)} settings", file=sys.stderr, flush=True)
    return chosen


def final(method: str, rates: dict[str, float], experiment: str, seeds: int, folder: Path) -> list[dict[str, Any]]:
    """Summaries of the chosen rates with every seed."""
    given = [f"{key}={value}" for key, value in rates.items()]
    every = ",".join(map(str, range(seeds)))
    settings = [f"experiment={experiment}", f"algorithm={method}", *given, f"seed={every}"]
    runs = sweep(folder / "final" / method, settings)
    return [rundir.summary(run) for run in runs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=list(SECOND), choices=list(SECOND))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="methods at the same time, one thread each")
    parser.add_argument("--experiment", default="main")
    parser.add_argument("--table", type=Path, metavar="FILE", help="only print the table of an earlier call's JSON")
    args = parser.parse_args()
    if args.table:
        methods = json.loads(args.table.read_text())["methods"]
        print(markdown([(method, one["rates"], one["runs"]) for method, one in methods.items()]))
        return
    folder = Path("outputs") / f"compare-{args.experiment}"

    def one(method: str) -> tuple[str, dict[str, float], list[dict[str, Any]]]:
        rates = search(method, args.experiment, folder)
        return method, rates, final(method, rates, args.experiment, args.seeds, folder)

    with ThreadPoolExecutor(args.jobs) as pool:
        results = list(pool.map(one, args.methods))
    record = {
        "command": " ".join(["python", *sys.argv]),
        "machine": f"{_cpu()}, one thread a run",
        "versions": results[0][2][0]["versions"],
        "methods": {method: {"rates": rates, "runs": runs} for method, rates, runs in results},
    }
    Path("results").mkdir(exist_ok=True)
    Path(f"results/compare_{args.experiment}.json").write_text(json.dumps(record, indent=1) + "\n")
    print(markdown(results))


def markdown(results: Sequence[tuple[str, dict[str, float], list[dict[str, Any]]]]) -> str:
    """The table: mean and deviation of the test accuracy in the last round over the seeds that did not diverge, payload
    of a run, chosen rates."""
    lines = ["| method | test accuracy, last round | MB up | MB down | chosen |", "|---|---|---|---|---|"]
    for method, rates, runs in results:
        finished = [run for run in runs if run["status"] == "finished"]
        values = [100 * run["last"]["test/accuracy"] for run in finished]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        lost = f" ({len(runs) - len(finished)} of {len(runs)} seeds diverged)" if len(finished) < len(runs) else ""
        chosen = ", ".join(f"{key} {value:g}{_edge(key, value)}" for key, value in rates.items())
        up, down = (finished[0][key] / 1e6 for key in ("up_bytes", "down_bytes"))
        mean = f"{statistics.mean(values):.1f} ± {spread:.1f}{lost}"
        lines.append(f"| {method} | {mean} | {up:.0f} | {down:.0f} | {chosen} |")
    return "\n".join(lines)


def _edge(key: str, value: float) -> str:
    """Marks a rate at the end of its grid: a better one may lie beyond."""
    grid = RATES if key == "local.lr" else next(values for name, values in SECOND.values() if name == key)
    return " (edge)" if value in (min(grid), max(grid)) else ""


def _list(values: Sequence[float]) -> str:
    return ",".join(map(str, values))


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores"


if __name__ == "__main__":
    main()
