"""The different partitions among some runs, each small enough for a picture: sizes, and shares of every class."""

from __future__ import annotations

import io
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import numpy as np

from fedmuon.errors import NO_ARCHIVE
from fedmuon.report.compare import SEEDS, shown
from fedmuon.report.curves import rounded
from fedmuon.report.runs import RunData

LINES = 150  # of the picture: more clients are averaged
CLASSES = 200  # more are not drawn
MOST = 12  # partitions of a page


def partitions(runs: Sequence[RunData]) -> tuple[list[dict[str, Any]], list[str]]:
    """The first MOST different partitions and the problems met; a run's is told apart by its file's content."""
    found: dict[str, dict[str, Any]] = {}
    more: set[str] = set()
    problems = []
    for number, run in enumerate(runs):
        try:
            content = (run.path / "partition.npz").read_bytes()
        except OSError:
            continue  # a run of another kind, or that has just begun
        key = sha256(content).hexdigest()
        if key in found:
            found[key]["runs"].append(number)
        elif len(found) < MOST:
            try:
                found[key] = {"label": _label(run), "runs": [number], **described(content)}
            except NO_ARCHIVE:
                problems.append(f"{run.path}: partition.npz: is damaged")
        else:
            more.add(key)
    if more:
        problems.append(f"{len(more)} other partitions are not drawn; give the report fewer runs to see them")
    return list(found.values()), problems


def described(content: bytes) -> dict[str, Any]:
    """Of a partition.npz: clients, samples, sizes [lines] and, where the run kept labels, shares [lines][classes] in %.

    A line is a client, or several where there are many; these are put in the order of their most frequent class.
    """
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    sizes = np.diff(arrays["offsets"])
    clients = len(sizes)
    found: dict[str, Any] = {"clients": clients, "samples": int(sizes.sum())}
    found |= {
        "smallest": int(sizes.min()),
        "largest": int(sizes.max()),
        "notes": [str(note) for note in arrays.get("notes", ())],
    }
    names, labels = np.unique(arrays.get("labels", np.zeros(0, int)), return_inverse=True)
    lines = min(clients, LINES)
    order = np.argsort(-sizes, kind="stable") if clients > LINES else np.arange(clients)
    if 0 < len(names) <= CLASSES and len(labels) == sizes.sum():
        owners = np.repeat(np.arange(clients), sizes)
        if clients > LINES:
            pairs, counts = np.unique(owners * len(names) + labels, return_counts=True)
            by_share = np.lexsort((counts, pairs // len(names)))
            dominant = np.full(clients, len(names))
            dominant[pairs[by_share] // len(names)] = pairs[by_share] % len(names)  # the last, most frequent one stays
            order = np.lexsort((-sizes, dominant))
        line = _lines(order, lines)
        table = np.bincount(line[owners] * len(names) + labels, minlength=lines * len(names)).reshape(lines, -1)
        share = 100 * table / np.maximum(table.sum(1, keepdims=True), 1)
        titles = arrays.get("classes", np.zeros(0, str))
        found["shares"] = [rounded(row, 3) for row in share]
        found["classes"] = [str(titles[n]) if 0 <= n < len(titles) else str(n) for n in names]
    line = _lines(order, lines)
    mean = np.bincount(line, sizes, minlength=lines) / np.maximum(np.bincount(line, minlength=lines), 1)
    return {**found, "sizes": rounded(mean, 6)}


def _lines(order: np.ndarray, lines: int) -> np.ndarray:
    """The line of each client, when clients in some order are dealt to so many lines."""
    line = np.empty(len(order), np.int64)
    line[order] = np.arange(len(order)) * lines // max(1, len(order))
    return line


def _label(run: RunData) -> str:
    node = {key.partition(".")[2]: value for key, value in run.config.items() if key.startswith("partition.")}
    name, apart = node.pop("name", "partition"), {"_target_", "seed", "min_size"}
    words = [f"{key}={shown(value)}" for key, value in node.items() if key not in apart and value is not None]
    return ", ".join([str(name), *words, f"seed {run.config.get(SEEDS[0], run.seed)}"])
