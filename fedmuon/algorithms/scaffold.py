"""SCAFFOLD: control variates correct the drift of local SGD."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from fedmuon.algorithms.algorithm import Step, Sums, column
from fedmuon.algorithms.sgd import SGD

if TYPE_CHECKING:
    from fedmuon.algorithms.algorithm import Tensors


@dataclass(frozen=True)
class Scaffold(SGD):
    """x <- x - eta (g - c_i + c), shapes [C, ...] (arXiv 1910.06378, option II for the control variates).

    After K_i steps  c_i <- c_i - c + (x0 - x_i) / (K_i eta),  and at the server  c <- c + sum over the cohort of
    q_i (c_i's change), q_i = 1/N, N the clients that have samples, or, under aggregation.weights=samples, n_i / sum n
    over all clients. c_i stays with its client; its change goes up beside x_i, c comes down beside x.

    Traps: the correction belongs into the direction (added to the loss as a number it has no gradient, and the method
    is FedAvg); K_i is the number of steps taken; a round of rate zero says nothing about the gradient and leaves c_i.
    """

    slots = ("own_control", "control_change")

    @property
    def shared(self) -> tuple[str, ...]:
        return ("control",)

    @property
    def sent(self) -> tuple[str, ...]:
        return ("control_change",)

    @property
    def kept(self) -> tuple[str, ...]:
        return ("own_control",)

    def direction(self, g: Tensors, s: Step) -> Tensors:
        own, control = s.state["own_control"], s.down["control"]
        return {name: grad.sub_(own[name]).add_(control[name]) for name, grad in g.items()}

    def end(self, s: Step) -> None:
        way = s.lr * s.k  # [C]
        for name in s.names:
            x, change, own = s.x[name], s.state["control_change"][name], s.state["own_control"][name]
            mean_step = (s.down["x"][name] - x).div_(column(way.masked_fill(way == 0, inf), x))
            change.copy_(mean_step.sub_(s.down["control"][name]).mul_(column(way != 0, x)))
            own.add_(change)

    def aggregate(self, states: dict[str, Tensors], means: dict[str, Tensors], sums: Sums) -> None:
        for name, control in states["control"].items():
            control.add_(means["control_change"][name], alpha=sums.share)
