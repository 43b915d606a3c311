"""Divisions that look at no label: equal shares, shares of log-normal size, and equal shares seen differently."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedmuon.constraints import check_fields
from fedmuon.data.partition import Partition, offsets_of
from fedmuon.data.partitions.sizes import check_sizes, equal_sizes, pool_of, shared_out, with_minimum
from fedmuon.data.schemas import FeatureShift, Quantity
from fedmuon.randomness import stream

_BLOCK = 10_000  # clients whose samples are sorted at once: memory for a million is that of the lists


def iid(
    labels: np.ndarray | int, clients: int, seed: int, *, min_size: int = 1, among: np.ndarray | None = None
) -> Partition:
    """Shuffle the samples and deal equal shares; the first n % clients get one more.

    Raises UsageError for clients < 1 and for min_size > n // clients (0 allows empty clients).
    """
    pool = pool_of(labels, among)
    return _dealt(pool, equal_sizes(len(pool), clients, min_size), stream(seed, "partition"))


def quantity(
    labels: np.ndarray | int,
    clients: int,
    seed: int,
    *,
    sigma: float = 1.0,
    min_size: int = 1,
    among: np.ndarray | None = None,
) -> Partition:
    """Quantity skew: client i gets a share of the shuffled samples proportional to exp(sigma z_i), z_i ~ N(0, 1).

    Where that is less than `min_size`, the largest clients give what lacks. sigma = 0 is `iid` in size; at 1 the
    largest 10 % of the clients hold about 40 % of the samples. Raises UsageError for sigma < 0, NaN or inf; as `iid`.
    """
    check_fields(Quantity, "partition.", sigma=sigma)
    pool = pool_of(labels, among)
    check_sizes(len(pool), clients, min_size)
    rng = stream(seed, "partition")
    log_share = sigma * rng.standard_normal(clients)
    share = np.exp(log_share - log_share.max())
    return _dealt(pool, with_minimum(shared_out(len(pool), share / share.sum()), min_size), rng)


def feature_shift(
    labels: np.ndarray | int,
    clients: int,
    seed: int,
    *,
    noise: float = 0.1,
    rotation: float = 0.0,
    min_size: int = 1,
    among: np.ndarray | None = None,
) -> Partition:
    """Feature skew: the lists of `iid`, and a view of the inputs that depends on the client, in `Partition.features`.

    noise     client i of N adds Gaussian noise of deviation noise * i / N to its normalised images, i = 1 ... N
              (noise-based feature imbalance, NIID-Bench, arXiv 2102.02079)
    rotation  the clients turn their images by angles that are evenly spread over -rotation ... rotation, in degrees
    Raises UsageError for a negative or infinite noise, a rotation outside 0 ... 180; as `iid`.
    """
    check_fields(FeatureShift, "partition.", noise=noise, rotation=rotation)
    partition = iid(labels, clients, seed, min_size=min_size, among=among)
    deviations = noise * np.arange(1, clients + 1) / clients
    degrees = np.linspace(-rotation, rotation, clients) if clients > 1 else np.full(1, rotation)
    return replace(partition, features=np.stack((deviations, degrees), axis=1).astype(np.float32))


def _dealt(pool: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> Partition:
    """The shuffled pool, cut into clients; each client's samples in ascending order."""
    indices, offsets = rng.permutation(pool), offsets_of(sizes)
    for first in range(0, len(sizes), _BLOCK):
        some = sizes[first : first + _BLOCK]
        held = indices[offsets[first] : offsets[first + len(some)]]
        held[:] = held[np.lexsort((held, np.repeat(np.arange(len(some)), some)))]
    return Partition(indices, offsets)
