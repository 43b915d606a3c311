"""What a workload returns, and timing side by side."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedmuon import devices


@dataclass(frozen=True)
class Table:
    """What a workload returns: rows of equal keys, and a line that says how to read them."""

    title: str
    note: str
    rows: list[dict[str, Any]]


def machine(threads: int, device: str) -> str:
    """CPU model, cores, threads used, the GPU where that is measured, torch and Python versions."""
    gpu = f", {torch.cuda.get_device_name()}" if device == "cuda" else ""
    return (
        f"{devices.machine()}{gpu}, {threads} thread{'s' * (threads > 1)}, "
        f"torch {torch.__version__}, Python {platform.python_version()}"
    )


def alternating(functions: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    """Median milliseconds of each function; they take turns, so that a busy moment of the machine hits all alike."""
    times: list[list[float]] = [[] for _ in functions]
    for repeat in range(repeats + 1):
        for function, own in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if repeat:  # the first turn warms up
                own.append((time.perf_counter() - start) * 1e3)
    return [statistics.median(own) for own in times]
