"""FedLADA: local AMSGrad whose second moment is averaged, mixed with the global direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedmuon.algorithms.algorithm import Algorithm, Step, alignment
from fedmuon.constraints import bounded

if TYPE_CHECKING:
    from fedmuon.algorithms.algorithm import Tensors


@dataclass(frozen=True)
class FedLADA(Algorithm):
    """x <- x - eta lambda x - eta [(1 - a) m / sqrt(vh) + a G], shapes [C, ...] (arXiv 2308.00522, alpha = 1 - a).

    m <- beta1 m + (1 - beta1) g from zero;  v <- beta2 v + (1 - beta2) g^2 and vh <- max(vh, v), both from the server's
    mean vh of the last round's clients, eps^2 before the first. vh goes up beside x_i and comes down beside x and G.
    No bias correction, and no eps beside the root, as vh never falls below eps^2: the first steps are long.
    """

    slots = ("m", "v", "vh")
    positive = ("vh",)

    alpha: float = alignment(0.9)
    beta1: float = bounded(0.9, low=0, high=1, open_high=True)
    beta2: float = bounded(0.999, low=0, high=1, open_high=True)
    eps: float = bounded(1e-8, low=0, open=True)
    weight_decay: float = bounded(0.0, low=0)

    @property
    def shared(self) -> tuple[str, ...]:
        return ("vh",)

    def initial(self, state: str) -> float:
        return self.eps**2

    def begin(self, s: Step) -> None:
        for name in s.names:
            s.state["v"][name].copy_(s.state["vh"][name])

    def direction(self, g: Tensors, s: Step) -> Tensors:
        d = {}
        for name, grad in g.items():
            m, v, vh = (s.state[slot][name] for slot in self.slots)
            m.lerp_(grad, 1 - self.beta1)
            v.mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
            vh.clamp_(min=v)
            d[name] = m / vh.sqrt()
        return d
