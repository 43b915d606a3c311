"""Index lists from a file: published ones, one's own, or those of another run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedmuon.data.partition import Partition, offsets_of
from fedmuon.data.partitions.sizes import pool_of
from fedmuon.data.rows import read_arrays, read_rows
from fedmuon.errors import UsageError


def from_file(
    labels: np.ndarray | int,
    clients: int,
    seed: int = 0,
    *,
    path: str | Path | None = None,
    min_size: int = 0,
    among: np.ndarray | None = None,
) -> Partition:
    """The lists of `path` in their order: `indices` [clients, samples] or one list a client, or a run's partition.npz.

    They count from 0 in the training set's own order and may repeat samples or leave some out: that is kept, counted
    and said in `Partition.notes`. What is not `among` (held out for validation) is taken out, and counted too.
    `features` [clients, 2] beside them, of a run of partition=feature_shift, shift the clients' images as they did.
    Raises UsageError for a file that cannot be read, another number of lists than clients, an index out of range, lists
    without a sample, a list shorter than min_size, other features.
    """
    if path is None:
        raise UsageError("partition.path=null: name the file with the clients' lists, an .npz or a .json")
    values, sizes = read_rows(path, "partition.path", "indices")
    count = len(pool_of(labels, None))
    if len(sizes) != clients:
        raise UsageError(
            f"federation.clients={clients}: {path} has {len(sizes)} lists; set federation.clients={len(sizes)}"
        )
    outside = values[(values < 0) | (values >= count)]
    if len(outside):
        raise UsageError(
            f"partition.path={path}: index {outside[0]} is out of range; the training set has {count} samples, counted "
            "from 0; are these lists of another data set?"
        )
    distributed = np.zeros(count, bool)
    distributed[pool_of(labels, among)] = True
    kept, owners = distributed[values], np.repeat(np.arange(clients), sizes)
    sizes = np.bincount(owners[kept], minlength=clients)
    if not kept.any():
        why = "all that its lists hold is held out by data.validation" if len(values) else "its lists are empty"
        raise UsageError(
            f"partition.path={path}: gives none of {clients} clients a sample to train on, {why}; name a file whose "
            f"lists hold some{', or lower data.validation' if len(values) else ''}"
        )
    if sizes.min() < min_size:
        raise UsageError(
            f"partition.min_size={min_size}: {np.sum(sizes < min_size)} lists of {path} have fewer samples, "
            f"the smallest {sizes.min()}; lower it or choose other lists"
        )
    notes = _notes(str(path), values, kept, distributed)
    return Partition(values[kept], offsets_of(sizes), _features(path, clients), notes)


def _features(path: str | Path, clients: int) -> np.ndarray | None:
    found = read_arrays(path, "partition.path").get("features")
    try:
        features = None if found is None else np.asarray(found, np.float32)
    except (TypeError, ValueError):
        features = np.empty(0, np.float32)
    if features is not None and (features.shape != (clients, 2) or not np.isfinite(features).all()):
        raise UsageError(
            f"partition.path={path}: its features must be the noise and the degrees of each client, finite numbers "
            f"[{clients}, 2]; leave others out of the file"
        )
    return features


def _notes(path: str, values: np.ndarray, kept: np.ndarray, distributed: np.ndarray) -> tuple[str, ...]:
    """What distinguishes the lists from a partition in the strict sense, in one line; nothing where nothing does."""
    different = len(np.unique(values))
    remain = len(np.unique(values[kept]))
    missing = int(distributed.sum()) - remain
    parts = []
    if different < len(values):
        parts.append(
            f"{different:,} different samples in {len(values):,} entries, {len(values) - different:,} are repeats"
        )
    if not kept.all():
        parts.append(f"{np.sum(~kept):,} entries are held out for validation and were taken out")
    if missing:
        parts.append(f"{missing:,} of {distributed.sum():,} training samples are in no list")
    return (f"{path}: " + "; ".join(parts),) if parts else ()
