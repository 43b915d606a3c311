"""The contract of an algorithm: how a client steps, and what clients and server tell each other.

Nothing here imports torch, so that a configuration is checked without it; rules use the methods of the tensors they are given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedmuon.constraints import bounded

if TYPE_CHECKING:
    from torch import Tensor

    Tensors = dict[str, Tensor]


@dataclass
class Step:
    """What a local rule is told at one local step of a stack of C clients. Tensors are keyed by parameter name."""

    x: Tensors  # [C, ...] parameters now
    x0: Tensors  # [...] parameters at the start of the round
    state: dict[str, Tensors]  # slot -> [C, ...], what the rule keeps between its steps
    down: dict[str, Tensors]  # what the server sent beside x: "delta_g" and the shared slots, [...]
    lr: Tensor  # [C] the rate of this rule's parameters in this round
    k: int | Tensor  # number of this local step, from 1; a [C] tensor where clients differ


class Rule(ABC):
    """A local rule for a set of parameters: x <- x - eta lambda x - eta [(1 - a) d + a G].

    A rule gives the direction d; decay (lambda) and the global direction (G, weight a) are the same for every rule.
    All tensors carry a leading client axis [C, ...] and are changed in place.
    """

    slots: ClassVar[tuple[str, ...]] = ()  # names of the state tensors, one a parameter; zero when a round starts
    weight_decay: float = 0.0

    @abstractmethod
    def direction(self, g: Tensors, s: Step) -> Tensors:
        """The direction d of every parameter in `g` (gradients [C, ...], free to be overwritten)."""

    def mixed(self, g: Tensors, s: Step, a: float) -> Tensors:
        """(1 - a) d + a G, in the memory of d."""
        d = self.direction(g, s)
        if a:
            for name, one in d.items():
                one.mul_(1 - a).add_(s.down["delta_g"][name], alpha=a)
        return d

    def step(self, g: Tensors, s: Step, a: float) -> None:
        """One local step of every parameter in `g`, in place on `s.x`."""
        for name, d in self.mixed(g, s, a).items():
            x = s.x[name]
            eta = s.lr.view(-1, *[1] * (x.ndim - 1))
            if self.weight_decay:
                x.mul_(1 - eta * self.weight_decay)
            x.addcmul_(d, eta, value=-1)

    def rate(self, lr: float) -> float:
        """The base rate of this rule's parameters, from `local.lr`."""
        return lr


@dataclass(frozen=True)
class Algorithm(Rule):
    """A rule that is federated. Subclasses add their parameters as fields; the YAML of the algorithm sets them.

    alpha  weight a of the global direction G = sum p_i (x - x_i) / (K_i eta_i) of the last round that had clients
    align  False: a = 0, and G is not sent
    """

    alpha: float = bounded(0.0, low=0, high=1)
    align: bool = True

    @property
    def a(self) -> float:
        """The weight of G in a local step."""
        return self.alpha if self.align else 0.0

    @property
    def shared(self) -> tuple[str, ...]:
        """Slots that clients send up, the server averages, and the next round's clients start from."""
        return ()

    def rule_for(self, name: str, shape: tuple[int, ...]) -> Rule:
        """The rule that steps one parameter."""
        return self

    def broadcast(self) -> tuple[str, ...]:
        """What the server sends to every client of a round."""
        return ("x", *(("delta_g",) if self.a else ()), *self.shared)

    def upload(self) -> tuple[str, ...]:
        """What every client sends back."""
        return ("x", *self.shared)
