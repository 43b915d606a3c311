"""FedProx: local SGD that is pulled back to where the round started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedmuon.algorithms.algorithm import Step
from fedmuon.algorithms.sgd import SGD
from fedmuon.constraints import bounded

if TYPE_CHECKING:
    from fedmuon.algorithms.algorithm import Tensors


@dataclass(frozen=True)
class FedProx(SGD):
    """x <- x - eta (g + mu (x - x0)), x0 the global model of the round; shapes [C, ...] (arXiv 1812.06127).

    mu = 0 is FedAvg. The pull is added after the clip, and is zero in the first local step: with one step a round the
    method is FedAvg whatever mu is.
    """

    mu: float = bounded(0.01, low=0)

    def direction(self, g: Tensors, s: Step) -> Tensors:
        return {name: grad.add_(s.x[name] - s.down["x"][name], alpha=self.mu) for name, grad in g.items()}
