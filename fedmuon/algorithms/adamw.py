"""AdamW on a client: for the parameters that are no matrices, fresh in every round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedmuon.algorithms.algorithm import Rule, Step, column
from fedmuon.constraints import bounded

if TYPE_CHECKING:
    from torch import Tensor

    from fedmuon.algorithms.algorithm import Tensors


@dataclass(frozen=True)
class AdamW(Rule):
    """d = (m / (1 - beta1^k)) / (sqrt(v / (1 - beta2^k)) + eps), m and v from zero in every round (arXiv 1711.05101).

    m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2;  k counts the local steps; shapes [C, ...].
    `lr` is the rate of these parameters; None takes `local.lr`. The decay is decoupled: x <- x - eta weight_decay x.
    """

    slots: ClassVar[tuple[str, ...]] = ("m", "v")

    lr: float | None = bounded(None, low=0)
    beta1: float = bounded(0.9, low=0, high=1, open_high=True)
    beta2: float = bounded(0.999, low=0, high=1, open_high=True)
    eps: float = bounded(1e-8, low=0, open=True)
    weight_decay: float = bounded(0.0, low=0)

    def direction(self, g: Tensors, s: Step) -> Tensors:
        d = {}
        of_m, of_v = seen(self.beta1, self.age("m", s), s.lr), seen(self.beta2, self.age("v", s), s.lr)
        for name, grad in g.items():
            m, v = s.state["m"][name], s.state["v"][name]
            m.lerp_(grad, 1 - self.beta1)
            v.mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
            d[name] = corrected(m, of_m).div_(corrected(v, of_v).sqrt_().add_(self.eps))
        return d

    def age(self, slot: str, s: Step) -> int | Tensor:
        """Steps that an average has seen: those of all rounds where it came from the server, else those of this one."""
        return s.t + s.k if slot in s.down else s.k

    def rate(self, lr: float) -> float:
        return lr if self.lr is None else self.lr


def seen(beta: float, steps: int | Tensor, like: Tensor) -> float | Tensor:
    """1 - beta^steps, the weight of all that an average from zero has seen; a tensor has the dtype of `like`."""
    if isinstance(steps, int):
        return 1 - beta**steps
    return (1 - beta ** steps.double()).to(like.dtype)  # 0-d or [C]; in float32 the first steps would lose four digits


def corrected(average: Tensor, weight: float | Tensor) -> Tensor:
    """An average [C, ...] free of the bias of its start, by the weight of what it has `seen`; a new tensor."""
    return average / (weight if isinstance(weight, float) else column(weight.to(average.dtype), average))
