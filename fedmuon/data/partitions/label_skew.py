"""Label skew from Dirichlet distributions: classes drawn for each client, or clients for each class."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedmuon.constraints import check_fields
from fedmuon.data.dealing import ranks, shuffled_by
from fedmuon.data.partition import Partition
from fedmuon.data.partitions.sizes import check_sizes, equal_sizes, labels_in, pool_of, with_minimum
from fedmuon.data.schemas import Dirichlet, DirichletClasses
from fedmuon.randomness import stream

Prior = Literal["classes", "flat"]


def dirichlet(
    labels: np.ndarray | int,
    clients: int,
    concentration: float,
    seed: int,
    min_size: int = 1,
    *,
    among: np.ndarray | None = None,
    prior: Prior = "flat",
) -> Partition:
    """Label skew: every client draws its own class mixture q and takes an equal share of samples without replacement.

    prior="flat" is q ~ Dir(concentration, ..., concentration), which FedDyn (arXiv 2111.04263), the index lists
    published with FedMuon (2510.27403) and most papers after them use. prior="classes" is q ~ Dir(concentration * p), p
    the class proportions (1909.06335): with C equal classes, "classes" at c * C is flat at c.
    When a class runs out, the client draws the rest from q over the classes that are left. The first n % clients
    get one sample more. labels: int [n]; among: distribute only these indices.
    Raises UsageError for concentration <= 0, NaN or inf, clients < 1, min_size > n // clients, an unknown prior.
    """
    check_fields(Dirichlet, "partition.", concentration=concentration, prior=prior)
    pool = pool_of(labels, among)
    sizes = equal_sizes(len(pool), clients, min_size)
    of_pool = labels_in(labels, pool, "dirichlet")
    classes, of_class, left = np.unique(of_pool, return_inverse=True, return_counts=True)
    proportions = left / max(len(pool), 1) if prior == "classes" else np.ones(len(classes))
    rng = stream(seed, "partition")
    drawn = _draw_classes(sizes, left, concentration * proportions, rng)

    by_class = pool[shuffled_by(of_class, rng)]
    indices = np.empty(len(pool), np.int64)
    indices[np.argsort(drawn, kind="stable")] = by_class  # the k-th slot of a class gets its k-th shuffled sample
    return Partition.from_owners(indices, np.repeat(np.arange(clients), sizes), clients)


def _draw_classes(sizes: np.ndarray, left: np.ndarray, alpha: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The class of every slot, client by client, int64 [sum of sizes]; `left` [classes] is what the pools hold.

    A repeated draw follows only on a pool that ran out, so the draws are at most clients with samples + classes.
    """
    left = left.copy()
    slots, filled = np.empty(int(sizes.sum()), np.int64), 0
    for size in sizes[sizes > 0]:
        log_mixture = _log_gammas(alpha, rng)
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


def dirichlet_classes(
    labels: np.ndarray | int,
    clients: int,
    seed: int,
    *,
    concentration: float = 0.5,
    capped: bool = True,
    min_size: int = 1,
    among: np.ndarray | None = None,
) -> Partition:
    """Label skew with sizes that vary: the samples of class k divided among the clients by p_k ~ Dir(concentration).

    Yurochkin et al. (arXiv 1905.12022) and NIID-Bench (2102.02079). capped=True is their code: a client that has
    n / clients samples gets none of the classes that follow, which their equations do not say. Classes follow in a
    random order. Instead of drawing anew until each client has `min_size`, random samples of the largest clients move
    to those that lack some, once. O(samples + clients) memory, O(samples + clients * classes) time.
    Raises UsageError for concentration <= 0, NaN or inf; as `iid`.
    """
    check_fields(DirichletClasses, "partition.", concentration=concentration)
    pool = pool_of(labels, among)
    check_sizes(len(pool), clients, min_size)
    of_pool = labels_in(labels, pool, "dirichlet_classes")
    rng = stream(seed, "partition")
    order = shuffled_by(of_pool, rng)
    counts = np.unique(of_pool, return_counts=True)[1]
    starts = np.cumsum(counts) - counts

    owners, sizes = np.empty(len(pool), np.int64), np.zeros(clients, np.int64)
    for k in rng.permutation(len(counts)):
        log_share = _log_gammas(np.broadcast_to(concentration, clients), rng)
        if capped:
            log_share[sizes * clients >= len(pool)] = -np.inf
        share = np.cumsum(np.exp(log_share - log_share.max()))
        cuts = np.floor(share / share[-1] * counts[k]).astype(np.int64)
        taken = np.diff(cuts, prepend=0)
        owners[order[starts[k] : starts[k] + counts[k]]] = np.repeat(np.arange(clients), taken)
        sizes += taken
    return Partition.from_owners(pool, _topped_up(owners, sizes, with_minimum(sizes, min_size), rng), clients)


def _topped_up(owners: np.ndarray, sizes: np.ndarray, wanted: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """`owners` [n] after random samples moved from clients with more to clients with fewer than `wanted` [clients]."""
    moved = shuffled_by(owners, rng)[ranks(sizes) >= np.repeat(wanted, sizes)]
    owners = owners.copy()
    owners[rng.permutation(moved)] = np.repeat(np.arange(len(sizes)), np.maximum(wanted - sizes, 0))
    return owners


def _log_gammas(alpha: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Logarithms of Gamma(alpha) variables; normalised, their exponentials are a draw of Dir(alpha).

    log Gamma(a) = log Gamma(a + 1) + log U / a: in logarithms no weight vanishes, however small a is, so a mixture
    can always be renormalised over a part of it.
    """
    alpha = np.maximum(alpha, 1e-300)  # below, the quotient overflows; the mixture is one entry long before
    return np.log(rng.standard_gamma(alpha + 1)) - rng.standard_exponential(len(alpha)) / alpha
