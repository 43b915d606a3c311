"""The other FedMuon, of arXiv 2509.26337: Muon with control variates on the momentum."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedmuon.algorithms.algorithm import Algorithm, Step, Sums, column
from fedmuon.algorithms.muon import Polar
from fedmuon.constraints import bounded
from fedmuon.optim.routing import matrix_view

if TYPE_CHECKING:
    from torch import Tensor

    from fedmuon.algorithms.algorithm import Tensors


@dataclass(frozen=True)
class FedMuonLMO(Algorithm):
    """M_i <- beta M_i + (1 - beta) g;  x <- x - eta P(M_i - C_i + C), shapes [C, ...] (arXiv 2509.26337).

    Three papers are called FedMuon: this one (bias-corrected LMO), 2510.27403 (`Muon`, this project's main one) and
    2510.03866. P is the polar factor of the matrix view; what is no matrix moves along its direction divided by its
    norm.

    M_i stays with its client, and C_i is M_i as its last round left it. The change of C_i goes up beside x_i; the
    server keeps  C <- C + sum over the cohort of q_i (C_i's change), sends it beside x, and steps
    x <- x + sum q_i (x_i - x):  q_i = 1/N, N the clients that have samples, or, under aggregation.weights=samples,
    n_i / sum n over all clients, so clients outside the cohort count as not having moved.
    """

    slots = ("momentum", "control_change")  # control_change: -C_i while the client trains

    beta: float = bounded(0.9, low=0, high=1, open_high=True)
    polar: Polar = field(default_factory=Polar)
    weight_decay: float = bounded(0.0, low=0)

    @property
    def waits(self) -> bool:
        return self.polar.waits

    @property
    def shared(self) -> tuple[str, ...]:
        return ("control",)

    @property
    def sent(self) -> tuple[str, ...]:
        return ("control_change",)

    @property
    def kept(self) -> tuple[str, ...]:
        return ("momentum",)

    def matrix(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """[rows, cols] or [stack, rows, cols]: as what P sees a parameter; None for what is no matrix."""
        return matrix_view(shape) if len(shape) >= 2 else None

    def begin(self, s: Step) -> None:
        for name in s.names:
            s.state["control_change"][name].copy_(s.state["momentum"][name]).neg_()

    def direction(self, g: Tensors, s: Step) -> Tensors:
        d = {}
        for name, grad in g.items():
            m = s.state["momentum"][name].lerp_(grad, 1 - self.beta)
            d[name] = m + s.state["control_change"][name] + s.down["control"][name]
        views = {name: view for name, m in d.items() if (view := self.matrix(name, tuple(m.shape[1:])))}
        polars = self.polar.of({name: d[name] for name in views}, views)
        return {name: polars[name] if name in polars else _unit(m) for name, m in d.items()}

    def end(self, s: Step) -> None:
        for name in s.names:
            s.state["control_change"][name].add_(s.state["momentum"][name])

    def aggregate(self, states: dict[str, Tensors], means: dict[str, Tensors], sums: Sums) -> None:
        for name, control in states["control"].items():
            control.add_(means["control_change"][name], alpha=sums.share)
            means["x"][name].mul_(sums.share)


def _unit(d: Tensor) -> Tensor:
    """Each client's part of a stack [C, ...] divided by its Euclidean norm; 0 for 0, and no square underflows."""
    largest = d.reshape(len(d), -1).abs().amax(1)
    d = d / column(largest.masked_fill(largest == 0, 1.0), d)
    norm = d.reshape(len(d), -1).norm(dim=1)
    return d / column(norm.masked_fill(norm == 0, 1.0), d)
