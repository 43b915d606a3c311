"""The natural partition: a column of the data set says whose each sample is."""

from __future__ import annotations

import numpy as np

from fedmuon.data.dealing import packed
from fedmuon.data.partition import Partition
from fedmuon.data.partitions.sizes import check_sizes, pool_of
from fedmuon.errors import UsageError
from fedmuon.randomness import stream


def natural(
    labels: np.ndarray | int,
    clients: int,
    seed: int,
    *,
    groups: np.ndarray | None = None,
    merge: bool = False,
    min_size: int = 1,
    among: np.ndarray | None = None,
) -> Partition:
    """One client for each writer, user or device: client i holds the samples of the i-th group id in ascending order.

    groups: an id of any sortable type for every sample [n], `DataSet.groups`. merge=True deals the groups whole to
    fewer clients, the largest first to the client with the fewest samples, equal ones in random order.
    Raises UsageError without group ids, for another number of clients than groups (with merge: for more), and where
    a client has fewer than min_size samples, as groups are never divided.
    """
    if groups is None:
        raise UsageError(
            "partition=natural: the data set does not say whose its samples are (DataSet.groups); "
            "use partition=dirichlet, or partition=file with lists of your own"
        )
    pool = pool_of(labels, among)
    check_sizes(len(pool), clients, min_size)
    names, of_sample = np.unique(np.asarray(groups), return_inverse=True)
    if clients > len(names) or (clients < len(names) and not merge):
        raise UsageError(
            f"federation.clients={clients}: the data set has {len(names)} groups; set federation.clients={len(names)}"
            + ("" if clients > len(names) else ", or partition.merge=true to give several groups to a client")
        )
    owners = of_sample[pool]
    if clients < len(names):
        owners = packed(np.bincount(owners, minlength=len(names)), clients, stream(seed, "partition"))[owners]
    smallest = np.bincount(owners, minlength=clients)
    if smallest.min() < min_size:
        raise UsageError(
            f"partition.min_size={min_size}: {np.sum(smallest < min_size)} of {clients} clients have fewer samples, "
            f"the smallest {smallest.min()}; groups stay whole, so lower it"
            + (" or federation.clients" if merge else " or set partition.merge=true with fewer federation.clients")
        )
    return Partition.from_owners(pool, owners, clients)
