"""AdamW on a client: for the parameters that are no matrices, fresh in every round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedmuon.algorithms.algorithm import Rule, Step
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
        import torch  # late, see `fedmuon.algorithms.algorithm`

        grads, (m, v) = list(g.values()), ([s.state[slot][name] for name in g] for slot in ("m", "v"))
        torch._foreach_lerp_(m, grads, 1 - self.beta1)  # one call for all: they are many, and small
        torch._foreach_mul_(v, self.beta2)
        torch._foreach_addcmul_(v, grads, grads, value=1 - self.beta2)
        roots = torch._foreach_div(v, self.seen("v", self.beta2, s))
        torch._foreach_sqrt_(roots)
        torch._foreach_add_(roots, self.eps)
        d = torch._foreach_div(m, self.seen("m", self.beta1, s))
        torch._foreach_div_(d, roots)
        return dict(zip(g, d, strict=True))

    def seen(self, slot: str, beta: float, s: Step) -> float | Tensor:
        """1 - beta^steps, the weight of what an average from zero has seen: divided by it, it is free of that bias."""
        steps = self.age(slot, s)
        if isinstance(steps, int):
            return 1 - beta**steps
        return (1 - beta ** steps.double()).to(s.lr.dtype)  # 0-d; in float32 the first steps would lose four digits

    def age(self, slot: str, s: Step) -> int | Tensor:
        """Steps that an average has seen: those of all rounds where it came from the server, else those of this one."""
        return s.t + s.k if slot in s.down else s.k

    def rate(self, lr: float) -> float:
        return lr if self.lr is None else self.lr
