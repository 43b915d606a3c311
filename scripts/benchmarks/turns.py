"""Contestants in processes of their own that take turns, so that a busy moment of the machine hits all alike."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch


class Turn:
    """What a contestant is given: `begin` waits for its turn (False: the end), `end` hands the turn back."""

    def __init__(self, pipe: Connection, threads: int) -> None:
        self.pipe = pipe
        torch.set_num_threads(threads)

    def begin(self) -> bool:
        go = bool(self.pipe.recv())
        self.started = time.perf_counter()
        return go

    def end(self, note: str = "") -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.pipe.send((time.perf_counter() - self.started, _peak(), note))


@dataclass(frozen=True)
class Result:
    """seconds: median of a pass;  peak: MB of the process, on CUDA of the device;  note: what it said."""

    seconds: float
    peak: float
    note: str


def measured(contestants: Mapping[str, Callable[[Turn], Any]], passes: int, threads: int) -> dict[str, Result]:
    """Each contestant's passes, one contestant after the other in every turn; the first turn warms up."""
    spawn, pipes, processes = get_context("spawn"), {}, []
    for name, contestant in contestants.items():
        pipes[name], theirs = spawn.Pipe()
        processes.append(spawn.Process(target=_compete, args=(contestant, theirs, threads), daemon=True))
        processes[-1].start()
        theirs.close()
    found: dict[str, list[tuple[float, float, str]]] = {name: [] for name in contestants}
    for _ in range(passes + 1):
        for name, pipe in pipes.items():
            pipe.send(True)
            try:
                found[name].append(pipe.recv())
            except EOFError:
                raise SystemExit(f"{name}: its process ended before its turn did") from None
    for pipe in pipes.values():
        pipe.send(False)
    for process in processes:
        process.join()
    return {
        name: Result(statistics.median(s for s, _, _ in turns[1:]), turns[-1][1], next((n for *_, n in turns if n), ""))
        for name, turns in found.items()
    }


def _compete(contestant: Callable[[Turn], Any], pipe: Connection, threads: int) -> None:
    contestant(Turn(pipe, threads))


def _peak() -> float:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
