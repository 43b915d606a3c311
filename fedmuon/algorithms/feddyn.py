"""FedDyn: a linear and a quadratic term make the clients' minima agree with the global one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedmuon.algorithms.algorithm import Step, Sums
from fedmuon.algorithms.sgd import SGD
from fedmuon.constraints import bounded

if TYPE_CHECKING:
    from fedmuon.algorithms.algorithm import Tensors


@dataclass(frozen=True)
class FedDyn(SGD):
    """x <- x - eta (g - h_i + mu (x - x0)), shapes [C, ...] (arXiv 2111.04263, whose alpha is mu).

    After the last step  h_i <- h_i - mu (x_i - x0), which stays with its client. The server keeps
    h <- h - mu sum over the cohort of q_i (x_i - x0), q_i = 1/N, N the clients that have samples, or, under
    aggregation.weights=samples, n_i / sum n over all clients, and steps to  x = (mean of the cohort's x_i) - h / mu,
    with its optimizer at rate 1.

    Traps: q_i counts the population, the mean of x_i the cohort. mu must be above 0: the server divides by it.
    """

    slots = ("correction",)

    mu: float = bounded(0.01, low=0, open=True)

    @property
    def kept(self) -> tuple[str, ...]:
        return ("correction",)

    @property
    def secret(self) -> tuple[str, ...]:
        return ("mean_correction",)

    def direction(self, g: Tensors, s: Step) -> Tensors:
        h, x0 = s.state["correction"], s.down["x"]
        return {n: grad.sub_(h[n]).add_(s.x[n] - x0[n], alpha=self.mu) for n, grad in g.items()}

    def end(self, s: Step) -> None:
        for name in s.names:
            s.state["correction"][name].sub_(s.x[name] - s.down["x"][name], alpha=self.mu)

    def aggregate(self, states: dict[str, Tensors], means: dict[str, Tensors], sums: Sums) -> None:
        for name, h in states["mean_correction"].items():
            h.sub_(means["x"][name], alpha=self.mu * sums.share)
            means["x"][name].sub_(h, alpha=1 / self.mu)
