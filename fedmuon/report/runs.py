"""Reading run directories in whatever state they are: running, failed, killed, damaged, of another version.

What cannot be read is said in a run's `problems` and never ends the report. Nothing here imports torch.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fedmuon.apart import flat
from fedmuon.errors import UsageError
from fedmuon.listing import walk
from fedmuon.report.beside import damaged
from fedmuon.rundir import is_summary, lost

QUIET = 600.0  # seconds without a line, or ten rounds: a run that says "running" is taken as killed
_FILES = ("metrics.jsonl", "summary.json", "config.yaml")
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where PyYAML was built with it


@dataclass(frozen=True, eq=False)
class RunData:
    """What one run directory says.

    status    finished, running, failed, interrupted, timed_out, pruned: given up by a search, stopped: killed, it has
              not written for a while, or damaged: its metrics end before the last round that its summary tells of
    config    the resolved configuration, flat: {"local.lr": 0.1, ...}
    columns   metrics.jsonl by key, float64 [rounds], by ascending "round"; NaN where a round has no such figure,
              infinity where it has one that is not finite
    problems  what could not be read, a line each
    """

    path: Path
    name: str
    status: str
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    columns: Mapping[str, np.ndarray]
    problems: tuple[str, ...]

    def column(self, key: str) -> np.ndarray:
        """A column, NaN throughout where the run has none of this name."""
        found = self.columns.get(key)
        return np.full(len(self.columns["round"]), math.nan) if found is None else found

    @property
    def rounds(self) -> int:
        """Completed rounds."""
        return int(self.columns["round"][-1]) if len(self.columns["round"]) else int(_number(self.summary, "rounds"))

    @property
    def seed(self) -> Any:
        return self.config.get("seed")

    @property
    def complete(self) -> bool:
        """Whether its last round is the one it was meant to end with."""
        planned = _number(self.config, "federation.rounds")
        return self.status == "finished" or (self.status not in ("failed", "damaged") and 0 < planned <= self.rounds)


def read_runs(folders: Sequence[Path]) -> tuple[list[RunData], list[str]]:
    """Every run in and below some folders, in the order of their paths, and the folders' own problems.

    Raises UsageError for a folder that does not exist, and where no folder has a run.
    """
    found: dict[Path, Path] = {}
    problems = []
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"{folder}: there is no such directory; name run directories or folders that hold some")
        below = list(find(folder))
        if not below:
            problems.append(f"{folder}: holds no run")
        found |= {path.resolve(): path for path in below}
    runs = [read_run(path) for path in found.values()]
    empty = [run for run in runs if not (run.config or run.columns["round"].size or "status" in run.summary)]
    problems += [f"{run.path}: is no run directory of fedmuon" for run in empty]
    runs = [run for run in runs if run not in empty]
    if not runs:
        where = ", ".join(map(str, folders)) or "no directory"
        raise UsageError(f"{where}: no run in it; name a run directory, or a folder that holds some, such as outputs")
    return runs, problems


def find(folder: Path) -> Iterator[Path]:
    """The run directories in and below a folder, also through links, sorted; what lies inside one is its own."""
    for path, folders, files in walk(folder):
        if "metrics.jsonl" in files or "summary.json" in files or ("config.yaml" in files and _started(Path(path))):
            folders.clear()
            yield Path(path)


def read_run(path: Path, now: float | None = None) -> RunData:
    """One run directory.  now: seconds since 1970, to tell a running run from a killed one."""
    problems: list[str] = []
    config = dict(flat(_mapping(path / "config.yaml", _yaml, problems)))
    summary = _mapping(path / "summary.json", json.loads, problems)
    if not is_summary(summary) or (config and "status" not in summary and not problems):
        problems.append("summary.json: is damaged")
        summary = {}
    columns = _columns(read_lines(path / "metrics.jsonl", problems))
    status = summary.get("status")
    if status in (None, "running"):
        alive = _last_written(path) > (time.time() if now is None else now) - _patience(columns)
        status = "running" if alive else "stopped"
    last, ended = int(columns["round"][-1]) if len(columns["round"]) else 0, int(_number(summary, "rounds"))
    if status == "finished" and 0 < last < ended:
        status = "damaged"
        problems.append(f"metrics.jsonl: ends with round {last} of {ended}; the run does not count as complete")
    if gap := lost("metrics.jsonl", range(1, last), map(int, columns["round"])):
        problems.append(gap)
    if last and status != "running":
        problems += damaged(path, ended=status in ("finished", "damaged"))
    return RunData(
        path=path,
        name=str(summary.get("name") or path.name),
        status=str(status),
        config=config,
        summary=summary,
        columns=columns,
        problems=tuple(f"{path}: {problem}" for problem in problems),
    )


def read_lines(path: Path, problems: list[str], only: Sequence[bytes] = ()) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; what is none is left out and told in `problems`.

    only: of a long file, just the lines with one of these
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        problems.append(f"{path.name}: cannot be read ({error.strerror})")
        return []
    last = len(lines)
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if only:
        numbered = [(number, line) for number, line in numbered if any(part in line for part in only)]
    with suppress(ValueError):  # all at once takes half the time; what is wrong in a line is found one by one, below
        rows = json.loads(b"[" + b",".join(line for _, line in numbered) + b"]")
        if len(rows) == len(numbered) and all(isinstance(row, dict) for row in rows):
            return rows
    rows = []
    for number, line in numbered:
        try:
            row = json.loads(line)
        except ValueError:
            problems.append(
                f"{path.name}: {'its last line is cut off' if number == last else f'line {number} is no JSON'}"
            )
            continue
        if isinstance(row, dict):
            rows.append(row)
        else:
            problems.append(f"{path.name}: line {number} is no object")
    return rows


def stamp(folders: Sequence[Path]) -> list[tuple[str, float, int]]:
    """Something that is another when a run in some folders has written, or is new."""
    found = []
    for path in (run / name for folder in folders for run in find(folder) for name in _FILES):
        with suppress(OSError):
            found.append((str(path), path.stat().st_mtime, path.stat().st_size))
    return found


def _columns(rows: Iterable[dict[str, Any]]) -> dict[str, np.ndarray]:
    by_round = {int(row["round"]): row for row in rows if _is_number(row.get("round"))}
    ordered = [by_round[number] for number in sorted(by_round)]
    columns = {"round": np.array(sorted(by_round), float)}
    for key in dict.fromkeys(key for row in ordered for key in row if key != "round"):
        column = np.array([_figure(row[key]) if key in row else math.nan for row in ordered])
        if not np.isnan(column).all():
            columns[key] = column
    return columns


def _figure(value: Any) -> float:
    """NaN for what is no figure: notes, lists of rejected clients."""
    if value is None or (_is_number(value) and not abs(value) < 1e300):
        return math.inf
    return float(value) if _is_number(value) else math.nan


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _number(mapping: Mapping[str, Any], key: str) -> float:
    value = mapping.get(key)
    return value if _is_number(value) and math.isfinite(value) else 0  # type: ignore[arg-type, return-value]


def _mapping(path: Path, parse: Any, problems: list[str]) -> dict[str, Any]:
    try:
        found = parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(f"{path.name}: cannot be read ({error.strerror})")
    except (ValueError, yaml.YAMLError):
        problems.append(f"{path.name}: is damaged")
    else:
        if isinstance(found, dict):
            return found
        problems.append(f"{path.name}: is no mapping")
    return {}


def _yaml(text: str) -> Any:
    return yaml.load(text, _Loader)


def _started(path: Path) -> bool:
    """Whether a folder with nothing but a config.yaml is a run that got no further."""
    config = _mapping(path / "config.yaml", _yaml, [])
    return {"federation", "algorithm"} <= set(config) and "defaults" not in config


def _last_written(path: Path) -> float:
    return max((written for _, written, _ in stamp([path])), default=0.0)


def _patience(columns: Mapping[str, np.ndarray]) -> float:
    took = columns.get("time/round", np.array([]))
    return max(QUIET, 10 * float(took[-1]) if len(took) and np.isfinite(took[-1]) else 0.0)
