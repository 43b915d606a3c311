"""MimeLite: the server's momentum, made from full gradients, and frozen while a client trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedmuon.algorithms.algorithm import Step, Sums
from fedmuon.algorithms.sgd import SGD
from fedmuon.constraints import bounded

if TYPE_CHECKING:
    from fedmuon.algorithms.algorithm import Tensors


@dataclass(frozen=True)
class MimeLite(SGD):
    """x <- x - eta ((1 - beta) g + beta m), m frozen during the local steps; shapes [C, ...] (arXiv 2008.03606).

    The server keeps  m <- (1 - beta) sum p_i grad f_i(x0) + beta m, from the gradient over all of a client's samples at
    the round's start x0, never clipped (slot "gradient", filled by the engine; BatchNorm in training mode, its buffers
    untouched). x_i and that gradient go up, x and m come down. The extra pass over the data counts in the time.
    """

    slots = ("gradient",)
    full_gradient = True

    beta: float = bounded(0.2, low=0, high=1, open_high=True)

    @property
    def shared(self) -> tuple[str, ...]:
        return ("momentum",)

    @property
    def sent(self) -> tuple[str, ...]:
        return ("gradient",)

    def direction(self, g: Tensors, s: Step) -> Tensors:
        m = s.down["momentum"]
        return {name: grad.mul_(1 - self.beta).add_(m[name], alpha=self.beta) for name, grad in g.items()}

    def aggregate(self, states: dict[str, Tensors], means: dict[str, Tensors], sums: Sums) -> None:
        for name, m in states["momentum"].items():
            m.mul_(self.beta).add_(means["gradient"][name], alpha=1 - self.beta)
