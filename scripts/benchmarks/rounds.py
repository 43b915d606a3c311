"""What a round costs beside training: an empty one, and what a large population adds."""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from lightning import LightningModule
from lightning.pytorch.callbacks import Callback

from benchmarks.federated import fit
from benchmarks.table import Table
from benchmarks.turns import Turn, measured
from fedmuon.compose import Composer
from fedmuon.data.cohort import uniform
from fedmuon.data.partition import Partition
from fedmuon.data.partitions import iid
from fedmuon.data.samples import Samples
from fedmuon.federation import Federation
from fedmuon.job import checked_job
from fedmuon.models import MLP
from fedmuon.tasks import ImageClassification

POPULATIONS = (1_000, 10_000, 100_000, 1_000_000)
_SAMPLES = 1_000


class _Clock(Callback):
    def __init__(self) -> None:
        self.times = [time.perf_counter()]

    def on_train_epoch_end(self, trainer: Any, pl_module: LightningModule) -> None:
        self.times.append(time.perf_counter())

    def milliseconds(self) -> float:
        return statistics.median(1e3 * (b - a) for a, b in pairwise(self.times[5:]))


def _rounds(partition: Partition, rounds: int) -> float:
    """Median ms of a round of ten clients: two steps of two images in a tiny model, where they have any."""
    overrides = ["model=mlp", "algorithm=fedavg", "local.steps=2", "local.batch_size=2", "logger=none"]
    config = checked_job(Composer().compose(overrides)).config
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.rand(_SAMPLES, 1, 6, 6, generator=generator), torch.zeros(_SAMPLES, dtype=torch.int64)
    clients, sizes = len(partition), partition.sizes
    federation = Federation(
        ImageClassification(MLP((1, 6, 6), 4, [8]), 4), config.algorithm, server=partial(torch.optim.SGD, lr=1.0),
        train=Samples((images, labels)), partition=partition, local=config.local, engine=config.engine,
        cohort=lambda round: uniform(0, round, clients, 10, sizes=sizes),
    )  # fmt: skip
    clock = _Clock()
    fit(federation, "32-true", "cpu", [clock], rounds)
    return clock.milliseconds()


def overhead(arguments: argparse.Namespace) -> Table:
    """An empty round, and one of ten clients with next to nothing to do."""
    empty = Partition(np.empty(0, np.int64), np.zeros(101, np.int64))
    small = Partition(np.arange(_SAMPLES), np.arange(101) * 10)
    rounds = 20 * arguments.repeats
    rows = [
        {"round": name, "ms": _rounds(partition, rounds)}
        for name, partition in (
            ("empty: ten clients without samples", empty),
            ("ten clients, two steps of two samples", small),
        )
    ]
    return Table("overhead", f"Lightning's epoch, plan, aggregation; medians of {rounds} rounds.", rows)


def _population(clients: int, rounds: int, turn: Turn) -> None:
    while turn.begin():
        started = time.perf_counter()
        lists = iid(10 * clients, clients, seed=0)
        seconds = time.perf_counter() - started
        partition = Partition(np.remainder(lists.indices, _SAMPLES, out=lists.indices), lists.offsets)
        turn.end(f"{seconds} {_rounds(partition, rounds)}")


def population(arguments: argparse.Namespace) -> Table:
    """Populations of ten samples a client: each in a process of its own, whose peak memory is compared."""
    contestants = {f"{clients}": partial(_population, clients, 10 * arguments.repeats) for clients in POPULATIONS}
    results = measured(contestants, 1, arguments.threads)
    least = min(one.peak for one in results.values())
    rows = [
        {
            "clients": int(name),
            "partition s": float(one.note.split()[0]),
            "ms/round": float(one.note.split()[1]),
            "peak MB": one.peak,
            "MB more": one.peak - least,
        }
        for name, one in results.items()
    ]
    return Table("population", "Ten clients a round, ten samples a client; whole process, with torch.", rows)
