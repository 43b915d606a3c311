"""FedNova: clients that take more steps do not count more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedmuon.algorithms.algorithm import Sums
from fedmuon.algorithms.sgd import SGD

if TYPE_CHECKING:
    from fedmuon.algorithms.algorithm import Tensors


@dataclass(frozen=True)
class FedNova(SGD):
    """x <- x - eta g, K_i steps;  x += (sum p_i K_i) sum p_i (x_i - x0) / K_i  (arXiv 2007.07481, tau_i = K_i).

    The effective number of steps tau_i is K_i for plain SGD, which is what the client does; with weight decay it is so
    to first order in eta. With equal K_i this is FedAvg.
    """

    def weigh(self, steps: int) -> float:
        return 1 / steps

    def aggregate(self, states: dict[str, Tensors], means: dict[str, Tensors], sums: Sums) -> None:
        for change in means["x"].values():
            change.mul_(sums.mean_steps)
