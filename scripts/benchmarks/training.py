"""Workloads that train: engines and plain loops, in turns."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from benchmarks.federated import federated
from benchmarks.plain import plain_loop
from benchmarks.table import Table
from benchmarks.turns import measured
from benchmarks.workload import Workload, sized

_PFL = {"clients": 1000, "samples": 50, "cohort": 50, "batch": 10, "steps": 5, "muon": False}
_MUON = {"clients": 100, "samples": 500, "cohort": 10, "batch": 50, "steps": 5, "muon": True}
WORKLOADS = {
    "mlp": Workload(("model=mlp", "algorithm=fedavg"), (1, 28, 28), 10, **_PFL),
    "pfl_cnn": Workload(("model=cnn_pfl", "algorithm=fedavg"), (3, 32, 32), 10, **_PFL),
    "lenet5": Workload(("model=lenet5", "algorithm=fedmuon"), (1, 28, 28), 10, **{**_MUON, "batch": 32}, embedded=True),
    "resnet18": Workload(("model=resnet18", "algorithm=fedmuon"), (3, 32, 32), 100, **_MUON),
    "vit_tiny": Workload(("model=vit_tiny", "algorithm=fedmuon"), (3, 32, 32), 100, **_MUON),
}
_OVERRIDES = {"cuda": ("trainer.precision=bf16-mixed", "algorithm.polar.method=newton_schulz",
                       "algorithm.polar.dtype=bfloat16")}  # fmt: skip


def training(name: str, arguments: argparse.Namespace) -> Table:
    """Client-steps a second, ms a step of the whole cohort, peak memory, and how many times the plain loop that is."""
    workload = sized(
        WORKLOADS[name], cohort=arguments.cohort, batch=arguments.batch, steps=arguments.steps, device=arguments.device
    )
    rounds, threads = arguments.rounds, arguments.threads
    contestants: dict[str, Any] = {}
    for number in sorted({1, threads}) if workload.device == "cpu" else [threads]:
        suffix = f", {number} thread{'s' * (number > 1)}" if workload.device == "cpu" else ""
        contestants[f"plain loop{suffix}"] = partial(plain_loop, workload, rounds, number, False)
        contestants[f"plain loop, buffers kept{suffix}"] = partial(plain_loop, workload, rounds, number, True)
    for engine in arguments.engines.split(","):
        options, _, more = engine.partition(":")
        overrides = (f"engine={options}", *filter(None, more.split("+")))
        if workload.muon:
            overrides = (*_OVERRIDES.get(workload.device, ()), *overrides)
        contestants[f"engine={engine}"] = partial(federated, workload, rounds, overrides)
    results = measured(contestants, arguments.repeats, threads)
    plain = min(one.seconds for contestant, one in results.items() if contestant.startswith("plain"))
    rows = [
        {
            "workload": name,
            "contestant": contestant,
            "client-steps/s": rounds * workload.client_steps / one.seconds,
            "ms/cohort step": 1e3 * one.seconds / rounds / workload.steps,
            "peak MB": one.peak,
            "x best plain loop": plain / one.seconds,
            "chose": one.note.partition("engine=auto: ")[2],
        }
        for contestant, one in results.items()
    ]
    note = (
        f"{workload.cohort} of {workload.clients} clients a round, {workload.steps} steps of {workload.batch} images, "
        f"{' '.join(workload.overrides)}; whole rounds, medians of {arguments.repeats} turns of {rounds} rounds. Plain "
        "loops have one resident model; peak: of the process, of the device on CUDA."
    )
    return Table(name, note, rows)
