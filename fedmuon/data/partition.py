"""Which client holds which training samples: index lists, saved with the run. `fedmuon.data.partitions` makes them."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedmuon import rundir
from fedmuon.data.dealing import ranks, shuffled_by
from fedmuon.errors import NO_ARCHIVE, UsageError, unreadable
from fedmuon.randomness import stream


@dataclass(frozen=True, eq=False)
class Partition:
    """Every client's sample indices in compressed rows: client i holds `indices[offsets[i]:offsets[i + 1]]`.

    indices    int64 [samples], into the whole training set;  offsets  int64 [clients + 1]
    features   float32 [clients, 2] where the clients' inputs differ: deviation of added noise, degrees of rotation
    notes      what a person should know about the lists (repeated samples of a file, for example), one line each
    """

    indices: np.ndarray
    offsets: np.ndarray
    features: np.ndarray | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.indices) or np.any(np.diff(self.offsets) < 0):
            raise ValueError("offsets must rise from 0 to the number of indices")
        if self.features is not None and self.features.shape != (len(self), 2):
            raise ValueError(f"features must have the shape ({len(self)}, 2), not {self.features.shape}")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> np.ndarray:
        """The indices of one client, a view. Raises IndexError beyond the last client, so iteration ends."""
        client = range(len(self))[client]
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def features_of(self, client: int) -> tuple[float, ...]:
        """(noise, degrees) of one client; empty where nobody's inputs differ."""
        return () if self.features is None else tuple(map(float, self.features[client]))

    @property
    def sizes(self) -> np.ndarray:
        """Samples a client, int64 [clients]."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> np.ndarray:
        """The client of every entry of `indices`, int64 [samples]."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @classmethod
    def from_lists(cls, lists: Iterable[Sequence[int] | np.ndarray]) -> Partition:
        """A partition from one list of indices a client, kept as they are (published lists may repeat samples)."""
        rows = []
        for client, row in enumerate(lists):
            try:
                found = np.asarray(row)
            except (ValueError, TypeError, RuntimeError):  # ragged, or a tensor that is no array
                found = np.asarray(None)
            if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
                told = reprlib.repr(row.tolist() if isinstance(row, np.ndarray) else row)
                raise UsageError(f"partition: client {client} has {told}; give every client a list of whole numbers")
            rows.append(found.astype(np.int64))
        if not rows:
            raise UsageError("federation.clients=0: a partition needs at least one client; give one list a client")
        return cls(np.concatenate(rows), offsets_of(np.array([len(row) for row in rows])))

    @classmethod
    def from_owners(cls, pool: np.ndarray, owners: np.ndarray, clients: int) -> Partition:
        """The samples `pool` [n] dealt to the clients `owners` [n], each client's in ascending order."""
        return cls(pool[np.lexsort((pool, owners))], offsets_of(np.bincount(owners, minlength=clients)))

    def save(
        self,
        path: str | Path,
        validation: np.ndarray | None = None,
        labels: np.ndarray | None = None,
        classes: Sequence[str] = (),
    ) -> None:
        """Write `path` (.npz) whole or not at all; `validation` are the indices that no client holds.

        labels: int [n] of the whole training set, classes their names: those of the entries are kept for the report.
        """
        path = Path(path)
        held_out = np.empty(0, np.int64) if validation is None else np.asarray(validation, np.int64)
        arrays: dict[str, Any] = {"indices": self.indices, "offsets": self.offsets, "validation": held_out}
        if self.features is not None:
            arrays["features"] = self.features
        if self.notes:
            arrays["notes"] = np.array(self.notes)
        if labels is not None:
            arrays["labels"] = np.asarray(labels)[self.indices]
            arrays["classes"] = np.array([str(name) for name in classes])
        with rundir.replacing(path) as beside, beside.open("wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> Partition:
        """Read what `save` wrote. Raises UsageError for a file that is missing, damaged or something else."""
        arrays = _read(path)
        notes = tuple(str(line) for line in arrays.get("notes", ()))
        return cls(arrays["indices"], arrays["offsets"], arrays.get("features"), notes)


def load_validation(path: str | Path) -> np.ndarray:
    """The validation indices saved beside a partition, int64, empty when there were none. Raises as `load` does."""
    return _read(path)["validation"]


def load_labels(path: str | Path) -> tuple[np.ndarray, list[str]]:
    """(the labels of all entries, int [entries], the classes' names) saved beside a partition; empty where none were.

    Raises as `load` does.
    """
    saved = _read(path)
    return saved.get("labels", np.empty(0, np.int64)), [str(name) for name in saved.get("classes", ())]


def check_indices(path: str | Path, samples: int, labels: np.ndarray | None) -> None:
    """Raise UsageError where a training set, int [samples] its labels, is not the one that a saved partition is of."""
    saved = _read(path)
    same = max((int(saved[name].max()) for name in ("indices", "validation") if len(saved[name])), default=-1) < samples
    if same and labels is not None and "labels" in saved:
        same = np.array_equal(np.asarray(labels)[saved["indices"]], saved["labels"])
    if not same:
        raise UsageError(
            f"data.root: holds another data set than the one that {path} divides; name the folder of the same data"
        )


def offsets_of(sizes: np.ndarray) -> np.ndarray:
    """Where each row starts and the last ends, int64 [len(sizes) + 1]."""
    return np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))


def validation_split(labels: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(train, validation): sorted int64 indices, disjoint and complete, `fraction` of every class held out.

    Shares are rounded so that the total is the nearest whole number to fraction * n; a class keeps at least one
    training sample. Raises UsageError for a fraction that is negative, NaN, 1 or more.
    """
    if not 0 <= fraction < 1:
        raise UsageError(f"data.validation={fraction}: must be a fraction from 0 up to but not 1; 0 holds out nothing")
    labels = np.asarray(labels)
    counts = np.unique(labels, return_counts=True)[1]
    quota = np.minimum(fraction * counts, counts - 1)
    take = np.floor(quota).astype(np.int64)
    extra = max(0, round(fraction * len(labels)) - int(take.sum()))
    remainder = quota - take
    largest = np.argsort(-remainder, kind="stable")[:extra]
    take[largest[remainder[largest] > 0]] += 1

    by_class = shuffled_by(labels, stream(seed, "validation"))
    held_out = ranks(counts) < np.repeat(take, counts)
    return np.sort(by_class[~held_out]), np.sort(by_class[held_out])


def _read(path: str | Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            needed = {name: file[name] for name in ("indices", "offsets", "validation")}
            return needed | {name: file[name] for name in ("features", "notes", "labels", "classes") if name in file}
    except FileNotFoundError:
        raise UsageError(
            f"{path}: there is no such partition file; it is written when a run starts: take it from a copy of the run"
        ) from None
    except NO_ARCHIVE as error:
        raise UsageError(
            f"{path}: is not a partition written by fedmuon ({unreadable(path, error)}); "
            "take it from a copy of the run, or delete it to make a new one, where the run goes on"
        ) from None
