"""Compare methods fairly: the constants of each by the same number of trials on a validation split, then fresh seeds.

    python scripts/compare.py [--methods fedmuon fedavg ...] [--seeds 3] [--experiment methods]
    python scripts/compare.py --table results/compare_methods.json      # only print an earlier call's table

Every method gets ten trials with seed 0, judged by validation accuracy in the last round: first local.lr from one grid
of eight values, then, at the best rate, two other values of one more constant of its own (`SECOND`). What is chosen is
then run with every seed. All runs share this process, one after the other, in outputs/compare-EXPERIMENT; a second call
goes on where the first stopped. Prints a Markdown table and writes results/compare_EXPERIMENT.json, in which methods
that are not asked for stay as they are; each has the commit, the versions and the machine that it was computed with.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import fedmuon
from fedmuon import rundir
from fedmuon.cli import checked_jobs
from fedmuon.experiment import RunFailed
from fedmuon.job import digest, identity
from fedmuon.paper.record import commit
from fedmuon.report.markdown import table

RATES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
# The second constant of a method, and two values beside the one of its file.
ALPHA, CLIP = ("algorithm.alpha", (0.25, 0.75)), ("local.clip", (1.0, 10.0))
SECOND: dict[str, tuple[str, tuple[float, float]]] = {
    "fedavg": CLIP,
    "fedavgm": ("server.momentum", (0.5, 0.8)),
    "fedprox": ("algorithm.mu", (0.001, 0.1)),
    "scaffold": ("local.clip", (0.3, 10.0)),
    "fednova": CLIP,
    "feddyn": ("algorithm.mu", (0.001, 0.1)),
    "fedcm": ("algorithm.alpha", (0.5, 0.7)),
    "mimelite": ("algorithm.beta", (0.5, 0.8)),
    "fedadam": ("server.lr", (0.003, 0.03)),
    "fedyogi": ("server.lr", (0.003, 0.03)),
    "fedadagrad": ("server.lr", (0.03, 0.1)),
    "local_adamw": ("algorithm.weight_decay", (0.0, 0.1)),
    "fedadamw": ALPHA,
    "fedlada": ("algorithm.alpha", (0.5, 0.7)),
    "fedpac": ALPHA,
    "local_muon": ("algorithm.beta", (0.9, 0.98)),
    "muloco": ("server.lr", (0.7, 1.0)),
    "fedmuon": ALPHA,
    "fedmuon_published": ALPHA,
    "fedmuon_svd": ALPHA,
    "fedmuon_lmo": ("algorithm.beta", (0.8, 0.95)),
}
TARGET = 0.8  # test accuracy: rounds and megabytes until it is first reached
Constants = dict[str, float]


def trained(method: str, constants: Mapping[str, float], seed: int, experiment: str) -> dict[str, Any]:
    """The summary of one run, made now or before, with what it took to reach TARGET."""
    given = [f"{key}={value}" for key, value in constants.items()]
    keys = [f"experiment={experiment}", f"algorithm={method}", "rates=none", *given, f"seed={seed}"]
    keys += ["logger=none", "checkpoint.every=1000", f"evaluation.targets=[{TARGET}]"]
    name = "-".join([f"seed{seed}", *(f"{key.rpartition('.')[2]}{value:g}" for key, value in constants.items())])
    (job,) = checked_jobs(keys)  # the digest: what its options stand for may have changed since an earlier call
    run = Path("outputs") / f"compare-{experiment}" / method / f"{name}-{digest(identity(job.saved))}"
    if rundir.summary(run).get("status") not in ("finished", "failed"):
        shutil.rmtree(run, ignore_errors=True)
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.suppress(RunFailed):
            fedmuon.run([*keys, f"run_dir={run}"])
    summary, rows = rundir.summary(run), rundir.read(run / "metrics.jsonl")
    reached = rundir.results(rows, "accuracy", "max", [TARGET])["rounds_to_target"][f"{TARGET:g}"]
    rows = [row for row in rows if reached and row["round"] <= reached]
    bytes_to_target = sum(row["comm/up_bytes"] + row["comm/down_bytes"] for row in rows) if reached else None
    return {**summary, "rounds_to_target": reached, "bytes_to_target": bytes_to_target}


def chosen(method: str, experiment: str) -> tuple[Constants, list[dict[str, Any]]]:
    """The constants with the best validation accuracy in the last round, and all trials; a failed one counts as 0."""

    def trial(constants: Constants) -> tuple[float, Constants, dict[str, Any]]:
        run = trained(method, constants, 0, experiment)
        last = run.get("last") if run.get("status") == "finished" else None
        accuracy = (last or {}).get("val/accuracy") or 0.0
        row = {**constants, "val/accuracy": accuracy, "status": run["status"], "seconds": run["seconds"]}
        return accuracy, constants, row

    def best() -> Constants:
        return max(trials, key=itemgetter(0))[1]

    key, values = SECOND[method]
    trials = [trial({"local.lr": lr}) for lr in RATES]
    first = best()
    trials += [trial({**first, key: value}) for value in values]
    return best(), [row for *_, row in trials]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=list(SECOND), choices=list(SECOND))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--experiment", default="methods")
    parser.add_argument("--table", type=Path, metavar="FILE", help="only print the table of an earlier call's JSON")
    args = parser.parse_args()
    if args.seeds < 1:
        parser.error(f"--seeds {args.seeds}: must be at least 1")
    if args.table and not args.table.is_file():
        parser.error(f"--table {args.table}: there is no such file; name results/compare_EXPERIMENT.json")
    file = args.table or Path("results") / f"compare_{args.experiment}.json"
    try:
        methods = read(file) if file.exists() else {}
    except ValueError as error:
        what = "name results/compare_EXPERIMENT.json" if args.table else "move it away for a new one"
        parser.error(f"{file}: is no record of this script ({error}); {what}")
    for method in () if args.table else args.methods:
        constants, trials = chosen(method, args.experiment)
        runs = [trained(method, constants, seed, args.experiment) for seed in range(args.seeds)]
        methods[method] = recorded(constants, trials, runs, methods.get(method, {}))
        print(f"{method}: {constants} of {len(trials)} trials", file=sys.stderr, flush=True)
        rundir.write_json(file, {"command": " ".join(["python", *sys.argv]), "methods": methods})
    print(markdown(methods))


KEPT = (
    "id", "name", "status", "last", "best", "rounds_to_target", "bytes_to_target", "up_bytes", "down_bytes", "seconds",
)  # fmt: skip


def recorded(
    constants: Constants, trials: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]], old: Mapping[str, Any]
) -> dict[str, Any]:
    """What is kept of a method; of runs that were in the file already, also where and by which code they were made."""
    found = {"chosen": constants, "trials": trials, "runs": [{key: run.get(key) for key in KEPT} for run in runs]}
    made = {"commit": commit(), "machine": runs[0]["machine"], "versions": runs[0]["versions"]}
    same = [run.get("id") for run in runs] == [run.get("id") for run in old.get("runs", ())]
    return found | (made | {key: old[key] for key in made if key in old} if same else made)


def read(file: Path) -> dict[str, Any]:
    """The methods of a record. Raises ValueError, which says what is wrong, for anything else."""
    try:
        methods = json.loads(file.read_text(encoding="utf-8"))["methods"]
        markdown(methods)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return methods


def markdown(methods: Mapping[str, Any]) -> str:
    """The table, best first: test accuracy in the last round, and what it takes to reach TARGET, over the seeds.

    Seconds are those of a method's fastest run, trials included: the least that other load on the machine has touched.
    """
    head = [
        "method",
        "test accuracy, last round",
        f"rounds to {TARGET:.0%}",
        f"MB to {TARGET:.0%}",
        "MB a run",
        "fastest run, s",
        "chosen",
    ]
    lines = []
    for method, one in sorted(methods.items(), key=lambda item: -_accuracy(item[1]["runs"])[0]):
        runs = [run for run in one["runs"] if run["status"] == "finished"]
        mean, spread = _accuracy(one["runs"])
        lost = (
            f" ({len(one['runs']) - len(runs)} of {len(one['runs'])} seeds diverged)"
            if len(runs) < len(one["runs"])
            else ""
        )
        ended = [run["seconds"] for run in [*one["trials"], *runs] if run["status"] == "finished"]
        bytes_a_run = [(run["up_bytes"] + run["down_bytes"]) / 1e6 for run in runs]
        cells = [
            f"{mean:.1f} ± {spread:.1f}{lost}",
            _reached(runs, "rounds_to_target", 1),
            _reached(runs, "bytes_to_target", 1e6),
            f"{statistics.mean(bytes_a_run):.0f}" if runs else "-",
            f"{min(ended):.1f}" if ended else "-",
            ", ".join(f"{key} {value:g}{_edge(key, value, one['trials'])}" for key, value in one["chosen"].items()),
        ]
        lines.append([method, *cells])
    return table(head, lines)


def _accuracy(runs: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Mean and deviation in percent over the seeds that did not diverge."""
    values = [100 * run["last"]["test/accuracy"] for run in runs if run["status"] == "finished"]
    return (statistics.mean(values) if values else 0.0), (statistics.stdev(values) if len(values) > 1 else 0.0)


def _reached(runs: Sequence[Mapping[str, Any]], key: str, unit: float) -> str:
    """The mean over the seeds that reached the target, and how many did where it was not all."""
    values = [run[key] / unit for run in runs if run[key] is not None]
    some = f" ({len(values)} of {len(runs)})" if len(values) < len(runs) else ""
    return f"{statistics.mean(values):.0f}{some}" if values else "-"


def _edge(key: str, value: float, trials: Sequence[Mapping[str, Any]]) -> str:
    """Marks a rate at the end of those that were tried: a better one may lie beyond."""
    rates = [trial["local.lr"] for trial in trials]
    return " (edge)" if key == "local.lr" and value in (min(rates), max(rates)) else ""


if __name__ == "__main__":
    main()
