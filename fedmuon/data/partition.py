"""Which client holds which training samples: index lists that are disjoint, complete and saved with the run."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fedmuon.errors import UsageError
from fedmuon.randomness import stream

Prior = Literal["classes", "flat"]


@dataclass(frozen=True, eq=False)
class Partition:
    """Every client's sample indices in compressed rows: client i holds `indices[offsets[i]:offsets[i + 1]]`.

    `indices` is int64 [samples], `offsets` int64 [clients + 1]; both index into the whole training set.
    """

    indices: np.ndarray
    offsets: np.ndarray

    def __post_init__(self) -> None:
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.indices) or np.any(np.diff(self.offsets) < 0):
            raise ValueError("offsets must rise from 0 to the number of indices")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> np.ndarray:
        """The indices of one client, a view. Raises IndexError beyond the last client, so iteration ends."""
        client = range(len(self))[client]
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    @property
    def sizes(self) -> np.ndarray:
        """Samples a client, int64 [clients]."""
        return np.diff(self.offsets)

    @classmethod
    def from_lists(cls, lists: Iterable[Sequence[int] | np.ndarray]) -> Partition:
        """A partition from one list of indices a client, kept as they are (published lists may repeat samples)."""
        rows = [np.asarray(row, dtype=np.int64) for row in lists]
        if not rows:
            raise UsageError("federation.clients=0: a partition needs at least one client; give one list a client")
        return cls(np.concatenate(rows), _offsets(np.array([len(row) for row in rows])))

    def save(self, path: str | Path, validation: np.ndarray | None = None) -> None:
        """Write `path` (.npz) whole or not at all; `validation` are the indices that no client holds."""
        path = Path(path)
        held_out = np.empty(0, np.int64) if validation is None else np.asarray(validation, np.int64)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with temporary.open("wb") as file:
                np.savez_compressed(file, indices=self.indices, offsets=self.offsets, validation=held_out)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | Path) -> Partition:
        """Read what `save` wrote. Raises UsageError for a file that is missing, damaged or something else."""
        arrays = _read(path)
        return cls(arrays["indices"], arrays["offsets"])


def load_validation(path: str | Path) -> np.ndarray:
    """The validation indices saved beside a partition, int64, empty when there were none. Raises as `load` does."""
    return _read(path)["validation"]


def iid(
    labels: np.ndarray | int, clients: int, seed: int, *, min_size: int = 1, among: np.ndarray | None = None
) -> Partition:
    """Shuffle the samples and deal equal shares; the first n % clients get one more.

    labels: the labels [n], or n itself, as only the number matters. among: distribute only these indices.
    Raises UsageError for clients < 1 and for min_size > n // clients (0 allows empty clients).
    """
    count = int(labels) if isinstance(labels, (int, np.integer)) else len(labels)
    pool = np.arange(count) if among is None else np.asarray(among, np.int64)
    sizes = _equal_sizes(len(pool), clients, min_size)
    return _rows(stream(seed, "partition").permutation(pool), sizes)


def dirichlet(
    labels: np.ndarray,
    clients: int,
    concentration: float,
    seed: int,
    min_size: int = 1,
    *,
    among: np.ndarray | None = None,
    prior: Prior = "classes",
) -> Partition:
    """Label skew: every client draws its own class mixture q and takes an equal share of samples without replacement.

    prior="classes" is q ~ Dir(concentration * p), p the class proportions (arXiv 1909.06335). prior="flat" is
    q ~ Dir(concentration, ..., concentration), which FedDyn (2111.04263), the index lists published with FedMuon
    (2510.27403) and most papers after them use: with C equal classes, flat at c is "classes" at c * C.
    When a class runs out, the client draws the rest from q over the classes that are left. The first n % clients
    get one sample more. labels: int [n]; among: distribute only these indices.
    Raises UsageError for concentration <= 0, NaN or inf, clients < 1, min_size > n // clients, an unknown prior.
    """
    if not (math.isfinite(concentration) and concentration > 0):
        raise UsageError(
            f"partition.concentration={concentration}: must be a finite number above 0; 0.1 is strong label skew, "
            "100 nearly none; use partition=iid for none"
        )
    if prior not in ("classes", "flat"):
        raise UsageError(f"partition.prior={prior!r}: must be 'classes' or 'flat'")
    pool = np.arange(len(labels)) if among is None else np.asarray(among, np.int64)
    sizes = _equal_sizes(len(pool), clients, min_size)
    classes, of_class, left = np.unique(np.asarray(labels)[pool], return_inverse=True, return_counts=True)
    proportions = left / max(len(pool), 1) if prior == "classes" else np.ones(len(classes))
    rng = stream(seed, "partition")
    drawn = _draw_classes(sizes, left, concentration * proportions, rng)

    order = rng.permutation(len(pool))
    by_class = pool[order[np.argsort(of_class[order], kind="stable")]]
    indices = np.empty(len(pool), np.int64)
    indices[np.argsort(drawn, kind="stable")] = by_class  # the k-th slot of a class gets its k-th shuffled sample
    return _rows(indices, sizes)


def _draw_classes(sizes: np.ndarray, left: np.ndarray, alpha: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The class of every slot, client by client, int64 [sum of sizes]; `left` [classes] is what the pools hold.

    A repeated draw follows only on a pool that ran out, so the draws are at most clients + classes.
    """
    left = left.copy()
    # Below 1e-300 the logarithm overflows; the mixture is one class long before.
    alpha = np.maximum(alpha, 1e-300)
    slots, filled = np.empty(int(sizes.sum()), np.int64), 0
    for size in sizes:
        # log Gamma(a) = log Gamma(a + 1) + log U / a: in logarithms no weight vanishes, however small a is,
        # so the mixture can always be renormalised over the classes that are left.
        log_mixture = np.log(rng.standard_gamma(alpha + 1)) - rng.standard_exponential(len(alpha)) / alpha
        stop = filled + size
        while filled < stop:
            open_classes = np.flatnonzero(left)
            weights = np.exp(log_mixture[open_classes] - log_mixture[open_classes].max())
            counts = rng.multinomial(stop - filled, weights / weights.sum())
            taken = np.minimum(counts, left[open_classes])
            left[open_classes] -= taken
            slots[filled : filled + taken.sum()] = np.repeat(open_classes, taken)
            filled += taken.sum()
    return slots


def validation_split(labels: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(train, validation): sorted int64 indices, disjoint and complete, `fraction` of every class held out.

    Shares are rounded so that the total is the nearest whole number to fraction * n; a class keeps at least one
    training sample. Raises UsageError for a fraction that is negative, NaN, 1 or more.
    """
    if not 0 <= fraction < 1:
        raise UsageError(f"data.validation={fraction}: must be a fraction from 0 up to but not 1; 0 holds out nothing")
    labels = np.asarray(labels)
    rng = stream(seed, "validation")
    order = rng.permutation(len(labels))
    counts = np.unique(labels, return_counts=True)[1]
    quota = np.minimum(fraction * counts, counts - 1)
    take = np.floor(quota).astype(np.int64)
    extra = max(0, round(fraction * len(labels)) - int(take.sum()))
    remainder = quota - take
    largest = np.argsort(-remainder, kind="stable")[:extra]
    take[largest[remainder[largest] > 0]] += 1

    by_class = order[np.argsort(labels[order], kind="stable")]
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    held_out = rank < np.repeat(take, counts)
    return np.sort(by_class[~held_out]), np.sort(by_class[held_out])


def _equal_sizes(samples: int, clients: int, min_size: int) -> np.ndarray:
    if clients < 1:
        raise UsageError(f"federation.clients={clients}: must be at least 1")
    if min_size < 0:
        raise UsageError(f"partition.min_size={min_size}: must be 0 (allow clients without samples) or more")
    share, rest = divmod(samples, clients)
    if min_size > share:
        raise UsageError(
            f"partition.min_size={min_size}: {samples} samples over federation.clients={clients} leave {share} for the "
            f"smallest client; allowed is 0 to {share}; lower it or use at most {samples // min_size} clients"
        )
    return share + (np.arange(clients) < rest).astype(np.int64)


def _offsets(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))


def _rows(indices: np.ndarray, sizes: np.ndarray) -> Partition:
    """Cut `indices` into clients, each client's sorted."""
    client = np.repeat(np.arange(len(sizes)), sizes)
    return Partition(indices[np.lexsort((indices, client))], _offsets(sizes))


def _read(path: str | Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in ("indices", "offsets", "validation")}
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such partition file; it is written when a run starts") from None
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(
            f"{path}: is not a partition written by fedmuon ({error}); delete it to make a new one"
        ) from None
