"""Local SGD: the client step of FedAvg, and of every method that only changes the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedmuon.algorithms.algorithm import Algorithm, Step
from fedmuon.constraints import bounded

if TYPE_CHECKING:
    from fedmuon.algorithms.algorithm import Tensors


@dataclass(frozen=True)
class SGD(Algorithm):
    """x <- x - eta lambda x - eta [(1 - a) g + a G], shapes [C, ...].

    With a server SGD of rate 1 this is FedAvg (arXiv 1602.05629), x <- x + sum p_i (x_i - x); with an adaptive server
    it is FedAdam, FedYogi or FedAdagrad (arXiv 2003.00295); with alpha > 0 it is FedCM (arXiv 2106.10874, whose own
    alpha is 1 - a).
    """

    weight_decay: float = bounded(0.0, low=0)

    def direction(self, g: Tensors, s: Step) -> Tensors:
        return g
