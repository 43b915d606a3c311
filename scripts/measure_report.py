"""How long fedmuon-report takes, and how much memory it needs, for run directories made up here.

    python scripts/measure_report.py [--runs 1000] [--rounds 300] [--seeds 5]

Each run has the files of a real one: a configuration, a line of figures a round, ten client lines a round, of which
every tenth round's are evaluated, a partition of 100 clients and a summary. Prints a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from fedmuon import devices, rundir
from fedmuon.cli import checked_jobs
from fedmuon.data.partition import Partition
from fedmuon.data.partitions import dirichlet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        for number in range(args.runs):
            write_run(Path(folder) / "runs" / f"run{number:05}", number, args.rounds, args.seeds)
        page = Path(folder) / "report.html"
        command = [sys.executable, "-m", "fedmuon.report.main", str(Path(folder) / "runs"), "-o", str(page)]
        started = perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        took = perf_counter() - started
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        memory = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        found: dict[str, Any] = {"runs": args.runs, "rounds": args.rounds, "seconds": round(took, 1)}
        found |= {"processor_seconds": round(used.ru_utime + used.ru_stime, 1), "memory_mb": round(memory / 1e6)}
        found |= {"page_mb": round(page.stat().st_size / 1e6, 2)}
        found |= {"machine": devices.machine()}
        print(json.dumps(found))


def write_run(path: Path, number: int, rounds: int, seeds: int) -> None:
    """One of the settings (rate x concentration x method), every one with some seeds."""
    path.mkdir(parents=True)
    seed, setting = number % seeds, number // seeds
    rng = np.random.default_rng(number)
    config = _configuration().copy()
    config.seed = config.partition.seed = config.model.seed = config.data.seed = seed
    config.federation.rounds = rounds
    config.algorithm.name = ("fedmuon", "fedavg")[setting % 2]
    config.partition.concentration = (0.1, 0.5, 1.0, 5.0)[setting // 2 % 4]
    config.local.lr = 0.001 * (1 + setting // 8)
    (path / "config.yaml").write_text(OmegaConf.to_yaml(config))
    labels = np.arange(9000) % 10
    partition: Partition = dirichlet(labels, 100, config.partition.concentration, seed)
    partition.save(path / "partition.npz", labels=labels, classes="abcdefghij")
    lines = list(_rounds(rng, rounds))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "clients.jsonl").write_text("".join(json.dumps(line) + "\n" for line in _clients(rng, rounds)))
    rundir.tabulate_clients(path)
    summary = {"status": "finished", "name": path.name, "parameters": 61706, "rounds": rounds, "machine": "none"}
    (path / "summary.json").write_text(json.dumps(summary))


@cache
def _configuration() -> DictConfig:
    (job,) = checked_jobs(["data.client_validation=0.2", "evaluation.clients_every=10"])
    return job.saved


def _rounds(rng: np.random.Generator, rounds: int) -> Iterator[dict[str, Any]]:
    for number, noise in enumerate(rng.random(rounds), 1):
        top = 0.8 * (1 - 0.98**number) + 0.02 * float(noise)
        line = {"round": number, "train/loss": 2 / number + float(noise), "train/lr": 0.1, "train/cohort": 10}
        line |= {"aggregation/update_norm": 0.142 + float(noise), "aggregation/drift": 0.46 + float(noise)}
        line |= {"comm/up_bytes": 4936480, "comm/down_bytes": 7404720, "time/train": 0.2539 + float(noise)}
        line |= {"val/loss": 1 - top, "val/accuracy": top - 0.01, "test/loss": 1.01 - top, "test/accuracy": top}
        if number % 10 == 0:
            names = ("mean", "mean_by_samples", "deviation", "worst_tenth")
            line |= {f"clients/{moment}/accuracy_{name}": top for moment in ("before", "after") for name in names}
        yield line | {"time/round": 0.3 + float(noise), "time/total": 0.8 * number}


def _clients(rng: np.random.Generator, rounds: int) -> Iterator[dict[str, Any]]:
    for number in range(1, rounds + 1):
        for client, noise in zip(rng.integers(0, 100, 10), rng.random(10), strict=True):
            line = {"round": number, "client": int(client), "samples": 90, "steps": 10, "weight": 0.1}
            line |= {"train/loss": float(noise), "update_norm": float(noise), "rejected": False, "seconds": 0.02}
            if number % 10 == 0:
                line |= {"before/loss": 0.7, "before/accuracy": 0.5, "after/loss": 0.1, "after/accuracy": float(noise)}
            yield line


if __name__ == "__main__":
    main()
