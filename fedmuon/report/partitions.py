"""The different partitions among some runs, each small enough for a picture: sizes, and shares of every class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from fedmuon.data.heterogeneity import client_figures
from fedmuon.data.partition import Partition, load_labels
from fedmuon.errors import NO_ARCHIVE
from fedmuon.report.binned import binned
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
        file = run.path / "partition.npz"
        try:
            content = file.read_bytes()
        except OSError:
            continue  # a run of another kind, or that has just begun
        key = sha256(content).hexdigest()
        if key in found:
            found[key]["runs"].append(number)
        elif len(found) < MOST:
            try:
                found[key] = {"label": _label(run), "runs": [number], **described(file)}
            except NO_ARCHIVE:
                problems.append(f"{run.path}: partition.npz: is damaged")
        else:
            more.add(key)
    if more:
        problems.append(f"{len(more)} other partitions are not drawn; give the report fewer runs to see them")
    return list(found.values()), problems


def described(path: Path) -> dict[str, Any]:
    """Of a partition.npz: clients, samples, sizes [lines] and, where the run kept labels, shares [lines][classes] in %.

    A line is a client, or several where there are many, see `binned`. Raises UsageError for a damaged file.
    """
    partition, (labels, titles) = Partition.load(path), load_labels(path)
    entries, sizes = len(partition.indices), partition.sizes
    names, numbers = np.unique(labels, return_inverse=True)
    known = 0 < len(names) <= CLASSES and len(labels) == entries
    if not known:
        names, numbers = np.zeros(1, np.int64), np.zeros(entries, np.int64)
    each = client_figures(replace(partition, indices=np.arange(entries)), numbers)
    share, size = binned(each, numbers, len(names), LINES)
    found = {
        "clients": len(partition),
        "samples": entries,
        "smallest": int(sizes.min()),
        "largest": int(sizes.max()),
        "notes": list(partition.notes),
        "sizes": rounded(size, 6),
    }
    if known:
        found["shares"] = [rounded(row, 3) for row in 100 * share]
        found["classes"] = [titles[n] if 0 <= n < len(titles) else str(n) for n in names]
    return found


def _label(run: RunData) -> str:
    node = {key.partition(".")[2]: value for key, value in run.config.items() if key.startswith("partition.")}
    name, apart = node.pop("name", "partition"), {"_target_", "seed", "min_size"}
    words = [f"{key}={shown(value)}" for key, value in node.items() if key not in apart and value is not None]
    return ", ".join([str(name), *words, f"seed {run.config.get(SEEDS[0], run.seed)}"])
