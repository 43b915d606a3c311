"""Jobs that run side by side on one machine: how many, and each its share of the threads or a GPU of its own. No torch,
but where a device is asked for by name.

A process takes a slot of its sweep, a lock that dies with it; the slot tells which of the visible devices is its own.
"""

from __future__ import annotations

import fcntl
import os
import platform
import sys
from functools import cache
from pathlib import Path

from fedmuon.errors import UsageError

AT_ONCE = "FEDMUON_JOBS_AT_ONCE"  # from the process that starts a sweep to those that run its jobs


def gpus() -> list[str]:
    """The visible CUDA devices, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip() not in ("", "-1")]
    driver = Path("/proc/driver/nvidia/gpus")
    return [str(number) for number in range(len(list(driver.iterdir())))] if driver.is_dir() else []


def check(accelerator: str, engine: str) -> None:
    """Raise UsageError where a device that is asked for by name is not there: only then is torch asked, which knows."""
    if accelerator in ("auto", "cpu") and engine != "graph":
        return
    import torch

    there = {"gpu": torch.cuda.is_available() or torch.backends.mps.is_available(), "cuda": torch.cuda.is_available()}
    there["mps"] = torch.backends.mps.is_available()
    if not there.get(accelerator, True):
        raise UsageError(
            f"trainer.accelerator={accelerator}: there is no such device here; use trainer.accelerator=cpu or auto"
        )
    if engine == "graph" and not torch.cuda.is_available():
        raise UsageError("engine=graph: needs an NVIDIA GPU, and there is none here; use engine=stacked or engine=auto")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The processor's name, as exact as the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def machine() -> str:
    """The processor, and how many cores there are."""
    return f"{processor()}, {os.cpu_count()} cores"


def jobs_at_once(accelerator: str, jobs: int) -> int:
    """As many as there are GPUs, where they are used, else as there are cores; never more than jobs."""
    return max(1, min(jobs, (len(gpus()) if accelerator != "cpu" else 0) or cores()))


def take_share(folder: Path, wait: bool) -> None:
    """Give this process its part of the machine, once, before torch is imported.  wait: until a slot is free."""
    count = int(os.environ.get(AT_ONCE, "1"))
    slot = _slot(folder.absolute(), count, wait)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // count)))
    _use_device(slot)


@cache
def _use_device(slot: int) -> None:
    if visible := gpus():
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[slot % len(visible)]


@cache
def _slot(folder: Path, count: int, wait: bool) -> int:
    """The number of a free slot below `count`, which is this process's until it ends."""
    (folder / ".slots").mkdir(parents=True, exist_ok=True)
    for slot in range(count):
        file = os.open(folder / ".slots" / str(slot), os.O_RDWR | os.O_CREAT, 0o666)  # stays open
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return slot
        except BlockingIOError:
            os.close(file)
    slot = os.getpid() % count
    if wait:
        told = f"{folder}: {count} jobs are at work in it, maybe of a sweep that was killed; waiting for one to end"
        print(told, file=sys.stderr, flush=True)
        fcntl.flock(os.open(folder / ".slots" / str(slot), os.O_RDWR), fcntl.LOCK_EX)
    return slot
