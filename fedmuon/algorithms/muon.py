"""Muon on a client, aligned with the global direction: FedMuon (arXiv 2510.27403) and its ablations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import TYPE_CHECKING

from fedmuon.algorithms.adamw import AdamW
from fedmuon.algorithms.algorithm import Algorithm, Rule, Step, alignment, check_slots
from fedmuon.constraints import bounded, choice
from fedmuon.errors import UsageError
from fedmuon.optim.routing import matches, matrix_view

if TYPE_CHECKING:
    from torch import Tensor

    from fedmuon.algorithms.algorithm import Tensors


@dataclass(frozen=True)
class Polar:
    """How the polar factor is computed; see `fedmuon.polar`. None: the method's own steps, the input's precision."""

    method: str = choice("polar_express", "polar_express", "newton_schulz", "svd")
    steps: int | None = bounded(None, low=1, high=100)
    dtype: str | None = choice(None, None, "bfloat16", "float32", "float64")

    @property
    def waits(self) -> bool:
        """See `Rule.waits`."""
        return self.method == "svd"

    def of(self, stacks: Tensors, views: Mapping[str, tuple[int, ...]]) -> Tensors:
        """P of stacks [C, ...], each client's part seen in the shape of `views`; never in their memory."""
        from fedmuon.optim import polar  # late, see `fedmuon.algorithms.algorithm`

        matrices = [m.reshape(len(m), *views[name]) for name, m in stacks.items()]
        found = polar.each(matrices, self.method, self.steps, self.dtype)
        return {name: p.reshape(m.shape) for (name, m), p in zip(stacks.items(), found, strict=True)}


@dataclass(frozen=True)
class Muon(Algorithm):
    """FedMuon of arXiv 2510.27403: M <- beta M + g from M = Mbar;  x <- x - eta [(1 - a) P(M) + a G].

    P(M) = U V^T is the polar factor of M seen as a matrix (`fedmuon.optim.routing.matrix_view`), per client; shapes
    [C, ...]. Mbar = sum p_i M_i is the mean momentum of the last round's clients. Parameters that are no matrices, and
    those whose name or its end matches a pattern of `exclude`, go to AdamW with a rate of its own (None: local.lr),
    mixed with G in the same way. Local Muon is the same without both.

    warm_start     start from Mbar (else from zero)       orthogonalize  False: P is the identity
    reset_momentum False: M stays with its client from round to round, as in MuLoCo (arXiv 2505.23725); the AdamW
                   moments of the other parameters are fresh in every round
    share          more slots that are averaged and start the next round: "m" and "v" of AdamW; "momentum" is warm_start
    mix_order      polar_then_mix: as above;  mix_then_polar: x <- x - eta P((1 - a) M + a G)
    split_qkv      weights [3d, d] of queries, keys and values in one, whose name matches a pattern of `qkv`, are stacks
                   [3, d, d]: P and the shape scale are those of the three parts
    What published code adds, each off by default:
    ema            M <- beta M + (1 - beta) g
    nesterov       the direction is taken from beta M + g (scaled alike)
    shape_scale    multiplies P by sqrt(max(1, rows/cols)) of the matrix view ("view") or of the last two dimensions of
                   the parameter, which for a convolution is kh/kw ("kernel": what the authors' code does)
    lr_scale       the rate of the matrices is lr_scale * local.lr
    """

    slots = ("momentum",)
    positive = ("v",)

    alpha: float = alignment(0.5)
    beta: float = bounded(0.95, low=0, high=1, open_high=True)
    warm_start: bool = True
    reset_momentum: bool = True
    share: list[str] = field(default_factory=list)
    orthogonalize: bool = True
    mix_order: str = choice("polar_then_mix", "polar_then_mix", "mix_then_polar")
    polar: Polar = field(default_factory=Polar)
    ema: bool = False
    nesterov: bool = False
    shape_scale: str = choice("none", "none", "view", "kernel")
    lr_scale: float = bounded(1.0, low=0, open=True)
    weight_decay: float = bounded(0.0, low=0)
    exclude: list[str] = field(default_factory=list)
    split_qkv: bool = False
    qkv: list[str] = field(default_factory=lambda: ["*qkv.weight", "*in_proj_weight"])
    adamw: AdamW = field(default_factory=lambda: AdamW(lr=0.01))

    def __post_init__(self) -> None:
        check_slots(self.share, (*self.slots, *self.adamw.slots))
        if not self.reset_momentum and "momentum" in self.shared:
            raise UsageError(
                "algorithm.reset_momentum=false: a client that keeps its momentum cannot start from the clients' mean; "
                "set algorithm.warm_start=false and leave momentum out of algorithm.share"
            )

    @property
    def waits(self) -> bool:
        return self.polar.waits and self.orthogonalize

    @property
    def shared(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*(self.slots if self.warm_start else ()), *self.share]))

    @property
    def kept(self) -> tuple[str, ...]:
        return () if self.reset_momentum else self.slots

    def rule_for(self, name: str, shape: tuple[int, ...]) -> Rule:
        return self if len(shape) >= 2 and not matches(name, self.exclude) else self.adamw

    def matrix(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """[rows, cols] or [stack, rows, cols]: as what P sees a parameter."""
        return matrix_view(shape, fused=self.split_qkv and matches(name, self.qkv))

    def rate(self, lr: float) -> float:
        return self.lr_scale * lr

    def direction(self, g: Tensors, s: Step) -> Tensors:
        return self._polars({name: self._momentum(grad, s.state["momentum"][name]) for name, grad in g.items()})

    def mixed(self, g: Tensors, s: Step, a: float) -> Tensors:
        if self.mix_order == "polar_then_mix":
            return super().mixed(g, s, a)
        momenta = {name: self._momentum(grad, s.state["momentum"][name]) for name, grad in g.items()}
        G = s.down["delta_g"] if a else {}
        return self._polars({name: m * (1 - a) + a * G[name] if a else m for name, m in momenta.items()})

    def _momentum(self, g: Tensor, m: Tensor) -> Tensor:
        """Advance M in place and return what is orthogonalised; a new tensor where the result is not M itself."""
        fresh = 1 - self.beta if self.ema else 1.0
        m.mul_(self.beta).add_(g, alpha=fresh)
        return g.mul_(fresh).add_(m, alpha=self.beta) if self.nesterov else m

    def _polars(self, momenta: Tensors) -> Tensors:
        """The directions of stacks of momenta [C, ...], never in their memory."""
        views = {name: self.matrix(name, tuple(m.shape[1:])) for name, m in momenta.items()}
        if not self.orthogonalize:
            return {name: m * self._scale(m, views[name]) for name, m in momenta.items()}
        polars = self.polar.of(momenta, views)
        if self.shape_scale != "none":
            for name, p in polars.items():
                p.mul_(self._scale(momenta[name], views[name]))
        return polars

    def _scale(self, m: Tensor, view: tuple[int, ...]) -> float:
        if self.shape_scale == "none":
            return 1.0
        rows, cols = view[-2:] if self.shape_scale == "view" or len(view) == 3 else m.shape[-2:]
        return sqrt(max(1.0, rows / cols))
