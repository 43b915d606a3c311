"""A run directory: what a run leaves behind, and enough to draw every chart. Nothing here imports torch.

config.yaml         resolved configuration           partition.npz       sample indices of every client
metrics.jsonl       one object a round               routing.json        parameter, shape, matrix view, rule
clients.jsonl       one object a client and round    model.safetensors   the final model, class names in its metadata
clients.parquet     the same as a table, at the end  checkpoints/        last.ckpt, best.ckpt
summary.json        status, results, versions
clients/            with federation.store=disk: what clients keep, one file a client (`fedmuon.store`)
run.lock            empty; held while a process runs
Lines are appended; whole files are replaced atomically, so that a reader, or a kill, never meets half of one.
"""

from __future__ import annotations

import json
import math
import os
import re
import reprlib
import secrets
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from os.path import expanduser
from pathlib import Path
from typing import Any

from fedmuon import lock
from fedmuon.errors import UsageError
from fedmuon.selection import at_target

# Statuses of a run that has done what was asked of it: timed_out where trainer.max_time was over before its last round,
# pruned where a search has given it up.
ENDED = ("finished", "timed_out", "pruned")
_PART = re.compile(r"\..+\.\d+")  # .NAME.NUMBER: a file before its rename, of `replacing`


def holds(path: Path) -> bool:
    """Whether a directory holds anything but what a run leaves that was killed before it began."""
    return any(entry.name != lock.FILE and not _PART.fullmatch(entry.name) for entry in path.iterdir())


def check_name(key: str, path: Path) -> None:
    """Raise UsageError, which names `key`, for a path that is no text, such as one of another encoding."""
    try:
        str(path).encode()
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{key}={str(path)!a}: is no UTF-8, or not in this locale, and not all files there could be read and "
            "written; name another folder"
        ) from error


def usable(key: str, folder: Path) -> None:
    """Raise UsageError, which names `key`, where a folder cannot be made or nothing can be written into it."""
    check_name(key, folder)
    if str(folder).startswith("~"):
        raise UsageError(f"{key}={folder}: begins with a home that is not known; name the whole path")
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    if not there.is_dir():
        kind = "a file" if there.is_file() else "no folder"
        what = f"is {kind}" if there.exists() else "is a link to what is not there"
        raise UsageError(f"{key}={folder}: {there} {what}; name a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(f"{key}={folder}: nothing can be written in {there}; name another folder")


def claim(path: Path) -> Path:
    """Make a run's directory, or take an empty one; never one that holds something."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        taken = holds(path)
    except OSError as error:
        raise UsageError(f"run_dir={path}: cannot be made ({error.strerror}); name another folder") from error
    if taken:
        raise UsageError(
            f"run_dir={path}: is not empty, and nothing is overwritten; name a new folder, or go on with resume={path}"
        )
    return path


def tidy(path: Path) -> None:
    """Remove what a kill has left half-written. Only for who holds the run's lock."""
    for part in path.rglob(".*"):
        if _PART.fullmatch(part.name) and part.is_file():
            part.unlink(missing_ok=True)


def numbered(parent: Path, name: str) -> Path:
    """A new directory parent/name-1, -2, ...: safe against other processes that do the same."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        taken = [p.name.removeprefix(f"{name}-") for p in parent.glob(f"{name}-*")]
        number = 1 + max((int(n) for n in taken if n.isdecimal()), default=0)
        while True:
            try:
                path = parent / f"{name}-{number}"
                path.mkdir()
                return path
            except FileExistsError:
                number += 1
    except OSError as error:
        raise UsageError(
            f"run_dir: {parent} cannot be written ({error.strerror}); name a folder with run_dir="
        ) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The place of a file beside `path` that replaces it at the end, where nothing was raised.

    Whoever writes it, such as safetensors, it is as readable as every new file here is.
    """
    beside = path.with_name(f".{path.name}.{secrets.randbits(64)}")  # other machines may write the same one
    try:
        beside.touch(exist_ok=False)  # the umask cannot be asked without being changed, for all threads
        mode = beside.stat().st_mode
        yield beside
        if beside.stat().st_mode != mode:
            beside.chmod(mode)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write(path: Path, text: str) -> None:
    """Replace a whole file atomically."""
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Replace a JSON file atomically; NaN and infinity, which JSON has not, become null."""
    write(path, json.dumps(_finite(content), indent=2) + "\n")


def append(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Add lines to a JSON-lines file."""
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(_finite(row)) + "\n" for row in rows))


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file by round; a line that is damaged, such as the last where a kill cut it, is passed
    over. Of several rows of a round, or of a client in it, as two writers leave them, the last counts."""
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else ():
        with suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict) and isinstance(row.get("round"), int):
                rows[row["round"], str(row.get("client"))] = row
    return sorted(rows.values(), key=lambda row: row["round"])


def cut_back(path: Path, round: int) -> list[dict[str, Any]]:
    """Keep the lines up to a round, and return them: what a checkpoint of that round knows of."""
    rows = [row for row in read(path) if row["round"] <= round]
    if path.exists():
        write(path, "".join(json.dumps(row) + "\n" for row in rows))
    return rows


def lost(file: object, wanted: Iterable[int], found: Iterable[int]) -> str:
    """A line about the rounds that a file should have rows of and has not; empty where there are none."""
    spans: list[list[int]] = []
    for one in sorted(set(wanted).difference(found)):
        if spans and spans[-1][1] == one - 1:
            spans[-1][1] = one
        else:
            spans.append([one, one])
    gone = ", ".join(f"{first}" if first == end else f"{first} to {end}" for first, end in spans)
    return gone and f"{file}: lacks rounds (was a copy cut short?): {gone}; totals and curves leave them out"


def summary(run: Path) -> dict[str, Any]:
    """A run's summary.json, empty where there is none. Raises UsageError for a damaged one."""
    path = run / "summary.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if not is_summary(found):
            raise ValueError("not what a run writes")
        return found  # type: ignore[no-any-return]
    except ValueError as error:  # no JSON, no text
        raise UsageError(f"{path}: is damaged ({error}); remove it and the run goes on from its checkpoint") from error


def is_summary(content: Any) -> bool:
    """Whether some JSON can be a run's summary, also of one that has just begun."""
    kinds = {"status": str, "id": str, "name": str, "rounds": int}
    kinds |= dict.fromkeys(("last", "best", "rounds_to_target"), dict)
    return isinstance(content, dict) and all(
        content.get(key) is None or isinstance(content[key], kind) for key, kind in kinds.items()
    )


def results(rows: list[dict[str, Any]], metric: str, mode: str, targets: Iterable[float]) -> dict[str, Any]:
    """Last and best-by-validation results, rounds to targets of the test metric, and totals, from metrics.jsonl."""
    evaluated = [row for row in rows if f"test/{metric}" in row or f"val/{metric}" in row]
    better = max if mode == "max" else min
    chosen = [row for row in evaluated if row.get(f"val/{metric}") is not None]
    best = better(chosen, key=lambda row: row[f"val/{metric}"]) if chosen else None

    def reached(target: float) -> int | None:
        for row in evaluated:
            value = row.get(f"test/{metric}")
            if value is not None and at_target(value, target, mode):
                return int(row["round"])
        return None

    return {
        "rounds": rows[-1]["round"] if rows else 0,
        "last": _evaluation(evaluated[-1]) if evaluated else None,
        "best": _evaluation(best) if best else None,
        "selection": f"best round by val/{metric} ({mode})" if best else "none: there is no validation split",
        "rounds_to_target": {f"{target:g}": reached(target) for target in targets},
        "skipped_rounds": [row["round"] for row in rows if row.get("aggregation/skipped")],
        **_bytes(rows),
        "seconds": rows[-1].get("time/total", 0.0) if rows else 0.0,
    }


def named(key: str, run: object) -> Path:
    """The run directory that Python gives as `key`. Raises UsageError for what is no path."""
    if isinstance(getattr(run, "path", None), Path):
        raise UsageError(f"{key}={type(run).__name__}: must be the path of a run directory; give run.path")
    if not isinstance(run, str | Path):
        raise UsageError(
            f"{key}={reprlib.repr(run)}: must be the path of a run directory; give the one that a run printed at its "
            "end"
        )
    return Path(expanduser(run))


def recounted(run: Path, ended: dict[str, Any], metric: str, mode: str, targets: Collection[float]) -> dict[str, Any]:
    """The summary of a run that has ended, written anew where the rounds to other targets are asked for."""
    if {f"{target:g}" for target in targets} == (ended.get("rounds_to_target") or {}).keys():
        return ended
    found = results(read(run / "metrics.jsonl"), metric, mode, targets)
    ended = {**ended, "rounds_to_target": found["rounds_to_target"]}
    write_json(run / "summary.json", ended)
    return ended


def _bytes(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Totals of up and down: sent, before compression where there was any, and derivable by the receivers."""
    totals = {"up_bytes": 0, "down_bytes": 0}
    for row in rows:
        for key, value in row.items():
            if key.startswith("comm/"):
                totals[key[5:]] = totals.get(key[5:], 0) + value
    return totals


def _evaluation(row: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value for key, value in row.items() if key == "round" or key.startswith(("train/loss", "val/", "test/"))
    }


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def tabulate_clients(run: Path) -> None:
    """clients.parquet from clients.jsonl, for those who read tables."""
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    rows = read(run / "clients.jsonl")
    if rows:
        names = list(dict.fromkeys(key for row in rows for key in row))
        table = pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows])
        with replacing(run / "clients.parquet") as beside:
            pq.write_table(table, beside)
