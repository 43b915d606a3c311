"""The contract of an algorithm: how a client steps, and what clients and server tell each other.

Nothing here imports torch, so that a configuration is checked without it; rules use the methods of the tensors they
are given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fedmuon.constraints import bounded
from fedmuon.errors import UsageError, nearest

if TYPE_CHECKING:
    from torch import Tensor

    Tensors = dict[str, Tensor]


@dataclass
class Step:
    """What a local rule is told at one local step of a stack of C clients. Tensors are keyed by parameter name."""

    names: tuple[str, ...]  # the parameters of this rule
    x: Tensors  # [C, ...] parameters now
    state: dict[str, Tensors]  # slot -> [C, ...], what the rule keeps between its steps
    down: dict[str, Tensors]  # what the server sent, [...]: "x", "delta_g" and the shared states
    lr: Tensor  # [C] the rate of this rule's parameters in this round
    k: int | Tensor  # number of this local step, from 1; a 0-d tensor in a graph, [C] where clients differ; 0 before
    t: int | Tensor = 0  # local steps of all rounds before this one, the largest K_i of each; 0-d in a graph

    def __post_init__(self) -> None:
        self._rates: dict[int, Tensor] = {}

    def rate(self, like: Tensor) -> Tensor:
        """`lr`, shaped to multiply a stack [C, ...]; made once for all parameters of so many dimensions."""
        if like.ndim not in self._rates:
            self._rates[like.ndim] = column(self.lr, like)
        return self._rates[like.ndim]


@dataclass(frozen=True)
class Sums:
    """What the server knows of the cohort when it aggregates."""

    share: float  # weight of the cohort in the population: sum w_i over the cohort / sum w_i over all, w_i = n_i or 1
    mean_steps: float  # sum p_i K_i


class Rule(ABC):
    """A local rule for a set of parameters: x <- x - eta lambda x - eta [(1 - a) d + a G].

    A rule gives the direction d; decay (lambda) and the global direction (G, weight a) are the same for every rule.
    All tensors carry a leading client axis [C, ...] and are changed in place.
    """

    slots: ClassVar[tuple[str, ...]] = ()  # names of the rule's state tensors, one a parameter
    weight_decay: float = 0.0

    @property
    def waits(self) -> bool:
        """Whether a step waits for the device, as reading a value does: no CUDA graph can hold it."""
        return False

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
            eta = s.rate(x)
            if self.weight_decay:
                x.mul_(1 - eta * self.weight_decay)
            x.addcmul_(d, eta, value=-1)

    def begin(self, s: Step) -> None:  # noqa: B027 - most rules have nothing to do here
        """Before the first local step; slots hold the server's shared state, what the client kept, or zero."""

    def end(self, s: Step) -> None:  # noqa: B027
        """After the last local step, number `s.k`: bring slots that are sent or kept up to date."""

    def slot_like(self, slot: str, x: Tensor) -> Tensor:
        """A zero slot for a parameter [C, ...]; of the same shape unless a rule says otherwise."""
        return x.new_zeros(x.shape)

    def rate(self, lr: float) -> float:
        """The base rate of this rule's parameters, from `local.lr`."""
        return lr


def alignment(a: float) -> Any:
    """The field `alpha` of an algorithm, with the default that is its own."""
    return bounded(a, low=0, high=1)


@dataclass(frozen=True)
class Algorithm(Rule):
    """A rule that is federated. Subclasses add their parameters as fields; the YAML of the algorithm sets them.

    alpha  weight a of the global direction G = sum p_i (x - x_i) / (K_i eta_i) of the last round that had clients
    align  False: a = 0, and G is not sent
    """

    alpha: float = alignment(0.0)
    align: bool = True

    positive: ClassVar[tuple[str, ...]] = ()  # states and slots that must stay above zero: second moments
    full_gradient: ClassVar[bool] = False  # clients fill the slot "gradient" at the round's x with all their samples

    @property
    def a(self) -> float:
        """The weight of G in a local step."""
        return self.alpha if self.align else 0.0

    @property
    def shared(self) -> tuple[str, ...]:
        """States of the server that every client receives; a slot of the same name starts from it."""
        return ()

    @property
    def sent(self) -> tuple[str, ...]:
        """Slots that clients send up and the server averages."""
        return self.shared

    @property
    def kept(self) -> tuple[str, ...]:
        """Slots that stay with their client from round to round; zero at first."""
        return ()

    @property
    def secret(self) -> tuple[str, ...]:
        """States that the server keeps to itself."""
        return ()

    def initial(self, state: str) -> float:
        """The value of a server state before the first round."""
        return 0.0

    def rule_for(self, name: str, shape: tuple[int, ...]) -> Rule:
        """The rule that steps one parameter."""
        return self

    def weigh(self, steps: int) -> float:
        """What a change counts beside its client's p_i in means["x"] = sum p_i weigh(K_i) (x_i - x); not in D."""
        return 1.0

    def aggregate(self, states: dict[str, Tensors], means: dict[str, Tensors], sums: Sums) -> None:
        """Update the server's states in place from the means sum p_i (...) of "x" and of the slots sent.

        That of "x" is D, unless changes are weighed (`weigh`). The server's optimizer steps along what is left in it.
        """
        for name in self.shared:
            for parameter, old in states[name].items():
                old.copy_(means[name][parameter])

    @property
    def steps_along_the_mean(self) -> bool:
        """Whether the server's optimizer steps along D as it is."""
        return type(self).aggregate is Algorithm.aggregate

    def broadcast(self) -> tuple[str, ...]:
        """What the server sends to every client of a round."""
        return ("x", *(("delta_g",) if self.a else ()), *self.shared)

    def upload(self) -> tuple[str, ...]:
        """What every client sends back."""
        return ("x", *self.sent)


def check_slots(share: Sequence[str], slots: Sequence[str]) -> None:
    """Raise `UsageError` for the first name in `algorithm.share` that is none of the rule's slots."""
    for name in share:
        if name not in slots:
            raise UsageError(f"algorithm.share={name}: must be among {', '.join(slots)}{nearest(name, slots)}")


def column(value: Tensor, like: Tensor) -> Tensor:
    """A per-client scalar [C], shaped to multiply a stack [C, ...]."""
    return value.view(-1, *[1] * (like.ndim - 1))
