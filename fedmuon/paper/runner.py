"""Sweeps on this machine: which runs they are made of, what of them is done, and doing the rest."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fedmuon import rundir
from fedmuon.compose import Composer
from fedmuon.errors import UsageError
from fedmuon.job import checked_job
from fedmuon.overrides import keyed
from fedmuon.paper.tables import Sweep, rows_of, values_of


@dataclass(frozen=True)
class Planned:
    """One run of a sweep. `row`: the values that vary, without the seed; `folder`: its run directory, made or not."""

    sweep: Sweep
    row: tuple[str, ...]
    seed: int
    folder: Path
    config: DictConfig

    @property
    def summary(self) -> dict[str, Any]:
        """summary.json, empty before it has started."""
        return rundir.summary(self.folder)

    @property
    def rounds_done(self) -> int:
        """Rounds in its metrics."""
        rows = rundir.read(self.folder / "metrics.jsonl")
        return int(rows[-1]["round"]) if rows else 0

    @property
    def finished(self) -> bool:
        """Nothing is left to do."""
        found = self.summary
        return found.get("status") == "finished" and found.get("rounds", 0) >= self.config.federation.rounds

    @property
    def ended(self) -> bool:
        """Whether it has come to a result: finished, or failed."""
        return self.finished or self.summary.get("status") == "failed"


def folder_of(sweep: Sweep, outputs: Path) -> Path:
    """The folder of a sweep: outputs/<table>-<protocol>/<group>."""
    slug = re.sub(r"[^\w.]+", "-", sweep.group).strip("-")
    return outputs / f"{sweep.table}-{sweep.protocol}" / slug


def planned(sweep: Sweep, seeds: int, outputs: Path) -> list[Planned]:
    """Every run of a sweep, its configuration checked. Raises UsageError for what is wrong in it."""
    composer, folder = Composer(), folder_of(sweep, outputs)
    jobs = composer.expand([*overrides_of(sweep, seeds), f"hydra.sweep.dir={folder}"]).jobs
    rows = [row for row in rows_of(sweep) for _ in range(seeds)]  # as Hydra does, whose last override varies fastest
    runs = []
    for row, overrides in zip(rows, jobs, strict=True):
        job = checked_job(composer.compose(overrides), folder)
        assert job.folder is not None
        runs.append(Planned(sweep, row, int(job.saved.seed), job.folder, job.saved))
    return runs


def overrides_of(sweep: Sweep, seeds: int) -> list[str]:
    """What Hydra is given for a sweep, but for its folder. `{half}`: half of what the key has without it."""
    every = list(sweep.overrides)
    if any("{half}" in one for one in every):
        whole = Composer().compose([one for one in every if "{half}" not in one and len(values_of(one)) == 1])
        every = [_halved(one, whole) if "{half}" in one else one for one in every]
    return [*every, f"seed={','.join(map(str, range(seeds)))}"]


def _halved(override: str, whole: DictConfig) -> str:
    rate = OmegaConf.select(whole, keyed(override)[0])
    return override.replace("{half}", "null" if rate is None else f"{rate / 2:g}")


def run(sweep: Sweep, seeds: int, outputs: Path, *, until: float | None = None, threads: int | None = None) -> bool:
    """Do what is left of a sweep in a process of its own; False where time was up before its end.

    until: `time.monotonic()` at which the process is asked to stop, as by Ctrl-C: what it has done stays, and the next
    call goes on from the last checkpoint. threads: of a CPU. Raises UsageError for wrong input.
    """
    folder = folder_of(sweep, outputs)
    command = [sys.executable, "-m", "fedmuon", "-m", f"hydra.sweep.dir={folder}", *overrides_of(sweep, seeds)]
    environment = {**os.environ, **({} if threads is None else {"OMP_NUM_THREADS": str(threads)})}
    folder.mkdir(parents=True, exist_ok=True)
    log = folder.parent / f"{folder.name}.log"
    with log.open("a") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
        in_time = _wait(process, until)
    if in_time and process.returncode not in (0, 1):
        raise UsageError(f"{log}: {_last_line(log)}")
    return in_time


def _wait(process: subprocess.Popen[bytes], until: float | None) -> bool:
    """Wait for the end of a process; interrupt it when time is up, or when this one is."""
    try:
        process.wait(None if until is None else max(0.0, until - time.monotonic()))
        return True
    except subprocess.TimeoutExpired:
        in_time = False
    except BaseException:
        process.send_signal(signal.SIGINT)
        process.wait()
        raise
    process.send_signal(signal.SIGINT)
    process.wait()
    return in_time


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "nothing was printed"


def commands(sweeps: Sequence[Sweep], seeds: int, outputs: Path) -> list[str]:
    """What one would type for each sweep."""
    quoted = []
    for sweep in sweeps:
        given = [f"'{o}'" if re.search(r"[\[\]{}() ]", o) else o for o in overrides_of(sweep, seeds)]
        quoted.append(f"fedmuon -m hydra.sweep.dir={folder_of(sweep, outputs)} {' '.join(given)}")
    return quoted
