"""How different the clients of a partition are, in a few figures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmuon.data.partition import Partition


@dataclass(frozen=True, eq=False)
class ClientFigures:
    """Of each client [clients]; NaN, and 0 classes, where it has no sample.

    classes  different labels;  largest  share of its most frequent label, which is `dominant` (-1 for none)
    distance  total variation distance, 0 ... 1, between its label distribution and that of all training samples
    """

    sizes: np.ndarray
    classes: np.ndarray
    dominant: np.ndarray
    largest: np.ndarray
    distance: np.ndarray


@dataclass(frozen=True)
class Heterogeneity:
    """Of a whole partition; means run over the clients that have samples, each counted once whatever its size.

    size_gini  Gini coefficient of the sizes of all clients: 0 all equal, towards 1 one has everything
    different, repeated, missing  different samples; entries beyond a sample's first; training samples without a client
    """

    clients: int
    empty: int
    entries: int
    different: int
    repeated: int
    missing: int
    size_min: int
    size_median: float
    size_max: int
    size_gini: float
    mean_classes: float
    mean_largest_share: float
    mean_distance: float


def client_figures(partition: Partition, labels: np.ndarray, among: np.ndarray | None = None) -> ClientFigures:
    """Each client's figures, in O(samples + clients) memory.

    labels: int [n];  among: the indices of the training samples, None for all
    """
    names, of_sample = np.unique(np.asarray(labels), return_inverse=True)
    training = of_sample if among is None else of_sample[among]
    overall = np.bincount(training, minlength=len(names)) / max(len(training), 1)
    sizes, clients = partition.sizes, len(partition)
    # Only the pairs (client, class) that occur: a million clients have no table of all classes.
    pairs, counts = np.unique(partition.owners * len(names) + of_sample[partition.indices], return_counts=True)
    client, label = pairs // len(names), pairs % len(names)
    share = counts / sizes[client]

    # Of classes that a client lacks the distance is their overall share: together 1 minus that of those it has.
    apart = np.bincount(client, np.abs(share - overall[label]) - overall[label], clients)
    filled = sizes > 0
    largest, dominant = np.full(clients, np.nan), np.full(clients, -1)
    order = np.lexsort((-label, share, client))
    last = order[np.flatnonzero(np.diff(client[order], append=clients))]
    largest[client[last]], dominant[client[last]] = share[last], label[last]
    return ClientFigures(
        sizes=sizes,
        classes=np.bincount(client, minlength=clients),
        dominant=np.where(filled, names[dominant], -1),
        largest=largest,
        distance=np.where(filled, (apart + 1) / 2, np.nan),
    )


def heterogeneity(
    partition: Partition, labels: np.ndarray, among: np.ndarray | None = None, each: ClientFigures | None = None
) -> Heterogeneity:
    """The figures of a partition, as in `client_figures`; `each` where these are known already."""
    each = each or client_figures(partition, labels, among)
    filled = each.sizes > 0
    different = np.unique(partition.indices)
    training = np.arange(len(labels)) if among is None else among
    return Heterogeneity(
        clients=len(partition),
        empty=int(np.sum(~filled)),
        entries=len(partition.indices),
        different=len(different),
        repeated=len(partition.indices) - len(different),
        missing=int(np.sum(~np.isin(training, different))),
        size_min=int(each.sizes.min()),
        size_median=float(np.median(each.sizes)),
        size_max=int(each.sizes.max()),
        size_gini=gini(each.sizes),
        mean_classes=_mean(each.classes[filled]),
        mean_largest_share=_mean(each.largest[filled]),
        mean_distance=_mean(each.distance[filled]),
    )


def gini(sizes: np.ndarray) -> float:
    """The Gini coefficient, sum_ij |s_i - s_j| / (2 n sum s): 0 for equal sizes, (n - 1) / n where one has all."""
    ordered, count = np.sort(sizes).astype(float), len(sizes)
    total = ordered.sum()
    return float((2 * np.arange(1, count + 1) - count - 1) @ ordered / (count * total)) if total else 0.0


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0
