"""Few classes a client: shards of the samples sorted by label, and groups of clients that share no class."""

from __future__ import annotations

import heapq

import numpy as np

from fedmuon.data.dealing import packed, ranks, shuffled_by
from fedmuon.data.partition import Partition, offsets_of
from fedmuon.data.partitions.sizes import check_sizes, labels_in, pool_of
from fedmuon.errors import UsageError
from fedmuon.randomness import stream


def shards(
    labels: np.ndarray | int,
    clients: int,
    seed: int,
    *,
    classes_per_client: int = 2,
    min_size: int = 1,
    among: np.ndarray | None = None,
) -> Partition:
    """Sort by label, cut into clients * classes_per_client shards of equal size, deal as many at random to each client.

    McMahan et al. (arXiv 1602.05629) with two shards a client. A shard that crosses from one class to the next brings
    both. Where the shards cannot be equal, every client's total still differs by at most one sample.
    Raises UsageError for classes_per_client outside 1 ... classes; as `iid`.
    """
    pool = pool_of(labels, among)
    check_sizes(len(pool), clients, min_size)
    of_pool = labels_in(labels, pool, "shards")
    classes = len(np.unique(of_pool))
    if not 1 <= classes_per_client <= classes:
        raise UsageError(
            f"partition.classes_per_client={classes_per_client}: must be from 1 to {classes}, the classes of the "
            "training samples; for clients with samples of all classes use partition=iid"
        )
    rng = stream(seed, "partition")
    by_label = pool[shuffled_by(of_pool, rng)]

    pieces = clients * classes_per_client
    turn = rng.permutation(pieces)  # when a shard is dealt: clients take turns, so that the larger ones spread evenly
    share, rest = divmod(len(pool), pieces)
    owner = rng.permutation(clients)[turn % clients]
    return Partition.from_owners(by_label, np.repeat(owner, share + (turn < rest)), clients)


def label_disjoint(
    labels: np.ndarray | int,
    clients: int,
    seed: int,
    *,
    label_groups: int | None = None,
    min_size: int = 1,
    among: np.ndarray | None = None,
) -> Partition:
    """Deal the classes to `label_groups` groups of clients: groups share no class, clients of a group share all, iid.

    Classes go to the group that has the fewest samples so far, the largest class first and equal ones in random order;
    then clients, one by one, to the group whose clients would still have most samples each, which makes the smallest
    client as large as these groups allow. None: as many groups as there are classes or clients, whichever is fewer.
    Raises UsageError for label_groups outside 1 ... min(classes, clients), a min_size that the groups cannot give.
    """
    pool = pool_of(labels, among)
    check_sizes(len(pool), clients, min_size)
    of_pool = labels_in(labels, pool, "label_disjoint")
    _, of_class, counts = np.unique(of_pool, return_inverse=True, return_counts=True)
    most = min(len(counts), clients)
    groups = most if label_groups is None else label_groups
    if not 1 <= groups <= most:
        raise UsageError(
            f"partition.label_groups={label_groups}: must be from 1 to {most}, the fewer of {len(counts)} classes and "
            f"federation.clients={clients}"
        )
    rng = stream(seed, "partition")
    group_of = packed(counts, groups, rng)
    samples = np.bincount(group_of, weights=counts, minlength=groups).astype(np.int64)
    members = _apportioned(samples, clients)
    smallest = int((samples // members).min())
    if min_size > smallest:
        raise UsageError(
            f"partition.min_size={min_size}: the smallest client of {groups} groups without a common class gets "
            f"{smallest}; allowed is 0 to {smallest}; lower it, or partition.label_groups, or federation.clients"
        )
    of_sample = group_of[of_class]
    order = shuffled_by(of_sample, rng)
    of_sample = of_sample[order]
    place = offsets_of(members)[of_sample] + ranks(samples) % members[of_sample]
    return Partition.from_owners(pool[order], rng.permutation(clients)[place], clients)


def _apportioned(samples: np.ndarray, clients: int) -> np.ndarray:
    """How many clients each group gets, int64 [groups], at least one: the smallest share becomes as large as possible.

    D'Hondt's rule gives the next client to the group with the largest samples / (clients + 1). All but the last few are
    given at once: no group's number under the rule is below floor(samples * (clients - groups) / total).
    """
    groups, total = len(samples), max(int(samples.sum()), 1)
    members = np.maximum(samples * max(clients - groups, 0) // total, 1)
    queue = [(-n / (have + 1), group) for group, (n, have) in enumerate(zip(samples, members, strict=True))]
    heapq.heapify(queue)
    for _ in range(clients - int(members.sum())):
        group = heapq.heappop(queue)[1]
        members[group] += 1
        heapq.heappush(queue, (-samples[group] / (members[group] + 1), group))
    return members
