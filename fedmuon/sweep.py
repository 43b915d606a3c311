"""The jobs of a sweep: what has become of each, in sweep.csv and sweep.parquet, and on the terminal. No torch.

The table is written by the process that started the sweep, atomically, whenever a job ends: it may be read at any time.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Event, Thread
from typing import Any

from omegaconf import OmegaConf

from fedmuon import lock, rundir
from fedmuon.apart import flat
from fedmuon.errors import UsageError
from fedmuon.job import Job
from fedmuon.report.compare import canonical, varying

OVER = (*rundir.ENDED, "failed", "interrupted")  # a run with such a status has no process any more
_SECONDS = 0.5  # between two looks at the jobs


@dataclass
class Sweep:
    """A folder of runs.

    jobs   those of this command, as far as they are known before they run
    known  whether these are all; a sweeper that searches adds others
    """

    folder: Path
    jobs: Sequence[Job] = ()
    known: bool = False
    _configs: dict[Path, Mapping[str, Any]] = field(default_factory=dict)
    _seen: dict[Path, int] = field(default_factory=dict)
    _then: str = ""
    _unwritten: str = ""  # why the tables are not what they should be
    _columns: tuple[list[Path], list[str]] = ([], [])  # of which runs: they are many to look through

    @property
    def all(self) -> list[Path]:
        """Every run directory: this command's in their order, then others of the same folder."""
        here = {file.parent for file in self.folder.glob("*/summary.json")}
        return [*self.ours, *sorted(here.difference(self.ours))]

    @property
    def mine(self) -> list[Path]:
        """The run directories that this command answers for."""
        return self.ours if self.known else self.all

    @cached_property
    def ours(self) -> list[Path]:
        return [job.folder for job in self.jobs if job.folder is not None] if self.known else []

    @property
    def left(self) -> list[Job]:
        """Jobs that have not come to an end."""
        return [job for job in self.jobs if self.known and job.folder and status(job.folder) not in OVER]

    def rows(self) -> list[dict[str, Any]]:
        """One row a run: the keys that vary, status, results, seconds, bytes."""
        runs = self.all
        configs = [self._config(run) for run in runs]
        if self._columns[0] != runs:
            self._columns = runs, columns(configs)
        keys = self._columns[1]
        return [
            {"job": run.name, **{key: config.get(key) for key in keys}, **_results(run)}
            for run, config in zip(runs, configs, strict=True)
        ]

    def write(self) -> None:
        """Replace sweep.csv and sweep.parquet. Where they cannot be written, that is said, and the jobs go on."""
        before, self._unwritten = self._unwritten, ""
        try:
            if rows := self.rows():
                names = list(dict.fromkeys(name for row in rows for name in row))
                write_tables(self.folder / "sweep", [{name: row.get(name) for name in names} for row in rows])
        except OSError as error:
            self._unwritten = f"{self.folder / 'sweep.csv'}: cannot be written ({error.strerror or error})"
            if self._unwritten != before:
                print(f"fedmuon: {self._unwritten}", file=sys.stderr, flush=True)

    @contextmanager
    def watched(self, then: str = "; the others go on") -> Iterator[None]:
        """While jobs run, in whatever processes: tell at once what fails, and keep the tables up to date."""
        self._then = then
        self._look(report=False)
        over = Event()

        def watch() -> None:
            while not over.wait(_SECONDS):
                self._look()

        thread = Thread(target=watch, daemon=True, name="sweep")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self._look()
            self.write()

    def _look(self, report: bool = True) -> None:
        changed, mine = False, set(self.mine)
        for run in self.all:
            file = run / "summary.json"
            written = file.stat().st_mtime_ns if file.exists() else 0
            if self._seen.get(run, 0) == written:
                continue
            self._seen[run] = written
            found = summary(run)
            changed |= found.get("status") in OVER
            if report and found.get("status") == "failed" and run in mine:
                print(f"fedmuon: {run}: {found.get('cause')}{self._then}", file=sys.stderr, flush=True)
        if changed and report:
            self.write()

    def bury(self) -> None:
        """Jobs that say they run while no process holds them have failed."""
        for run in self.mine:
            if status(run) == "running":
                try:
                    with lock.held(run):
                        cause = "its process ended without a word: killed, or out of memory"
                        rundir.write_json(run / "summary.json", {**summary(run), "status": "failed", "cause": cause})
                except (lock.Taken, UsageError, OSError):  # at work, or on a disk that takes nothing
                    continue

    def end(self) -> int:
        """Print the table of this command's jobs; 0 where all did what was asked and sweep.csv tells it, else 1."""
        from fedmuon.report.terminal import show

        metrics = {job.config.evaluation.metric for job in self.jobs}
        names = {job.folder: job.name for job in self.jobs if job.folder and job.name}
        show(self.mine, metrics.pop() if len(metrics) == 1 else "accuracy", names)
        print(self._unwritten or self.folder / "sweep.csv")
        return 0 if not self._unwritten and self.mine and all(status(run) in rundir.ENDED for run in self.mine) else 1

    def _config(self, run: Path) -> Mapping[str, Any]:
        if run not in self._configs:
            job = next((job for job in self.jobs if job.folder == run), None)
            if job is None and not (run / "config.yaml").exists():
                return {}
            saved = job.saved if job is not None else OmegaConf.load(run / "config.yaml")
            self._configs[run] = dict(flat(OmegaConf.to_container(saved)))  # type: ignore[arg-type]
        return self._configs[run]


def columns(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys that vary, `seed` last, without those that follow from an option, as an algorithm's own rate."""
    keys = varying(configs)
    named = [key for key in keys if key.endswith(".name")]
    options = [tuple(canonical(config.get(key)) for key in named) for config in configs]

    def follows(key: str) -> bool:
        pairs = {(option, canonical(config.get(key))) for option, config in zip(options, configs, strict=True)}
        return key not in named and len(pairs) == len(set(options))

    seeds = ["seed"] if len({canonical(config.get("seed")) for config in configs}) > 1 else []
    return [*(key for key in keys if not follows(key)), *seeds]


def summary(run: Path) -> dict[str, Any]:
    """A run's summary.json, empty where it cannot be read."""
    try:
        return rundir.summary(run)
    except (OSError, ValueError):
        return {}


def status(run: Path) -> str:
    return str(summary(run).get("status", "not started"))


def _results(run: Path) -> dict[str, Any]:
    found = summary(run)
    row: dict[str, Any] = {"status": found.get("status", "not started"), "rounds": found.get("rounds")}
    for moment in ("last", "best"):
        row |= {f"{moment}/{key}": value for key, value in (found.get(moment) or {}).items()}
    row |= {f"rounds_to/{target}": reached for target, reached in (found.get("rounds_to_target") or {}).items()}
    return row | {key: found.get(key) for key in ("seconds", "up_bytes", "down_bytes", "cause")}


def write_tables(stem: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """STEM.csv and STEM.parquet, each replaced atomically; a column of several types becomes text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    plain = {name: _column([row[name] for row in rows]) for name in rows[0]}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([list(plain), *zip(*plain.values(), strict=True)])
    rundir.write(stem.with_suffix(".csv"), text.getvalue())
    with rundir.replacing(stem.with_suffix(".parquet")) as beside:
        pq.write_table(pa.table(plain), beside)


def _column(values: Sequence[Any]) -> list[Any]:
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float}:
        return [None if value is None else float(value) for value in values] if float in kinds else list(values)
    if len(kinds) == 1 and kinds <= {bool, str}:
        return list(values)
    return [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
