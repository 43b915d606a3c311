"""FedAdamW: AdamW whose second moment is handed on as one number a parameter tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedmuon.algorithms.adamw import AdamW
from fedmuon.algorithms.algorithm import Algorithm, Step, alignment, column
from fedmuon.constraints import bounded

if TYPE_CHECKING:
    from torch import Tensor

    from fedmuon.algorithms.algorithm import Tensors


@dataclass(frozen=True)
class FedAdamW(AdamW, Algorithm):
    """x <- x - eta lambda x - eta (d + a G), d the direction of `AdamW`; shapes [C, ...] (arXiv 2510.27486).

    m starts from zero and is corrected by 1 - beta1^k, k the local step. v starts from the server's value and is
    corrected by 1 - beta2^t, t the steps of all rounds (of each round the largest K_i). What clients send of v is its
    mean over each parameter tensor, one number a tensor (the paper's blocks), averaged by the server.

    Trap: d is not multiplied by 1 - a, unlike in every other aligned method here.

    What the published scripts do instead:
    single_counter  m is corrected by t too        full_v  v itself goes up and down, not its block means
    """

    slots: ClassVar[tuple[str, ...]] = ("m", "v", "v_mean")
    positive: ClassVar[tuple[str, ...]] = ("v", "v_mean")

    alpha: float = alignment(0.5)
    weight_decay: float = bounded(0.01, low=0)
    single_counter: bool = False
    full_v: bool = False

    @property
    def shared(self) -> tuple[str, ...]:
        return ("v",) if self.full_v else ("v_mean",)

    def slot_like(self, slot: str, x: Tensor) -> Tensor:
        return x.new_zeros(len(x)) if slot == "v_mean" else x.new_zeros(x.shape)

    def begin(self, s: Step) -> None:
        if not self.full_v:
            for name in s.names:
                v = s.state["v"][name]
                v.copy_(column(s.state["v_mean"][name], v))

    def age(self, slot: str, s: Step) -> int | Tensor:
        return s.t + s.k if slot == "v" or self.single_counter else s.k

    def mixed(self, g: Tensors, s: Step, a: float) -> Tensors:
        d = self.direction(g, s)
        if a:
            for name, one in d.items():
                one.add_(s.down["delta_g"][name], alpha=a)
        return d

    def end(self, s: Step) -> None:
        for name in s.names:
            v = s.state["v"][name]
            s.state["v_mean"][name].copy_(v.reshape(len(v), -1).mean(1))
