"""Every constant of every algorithm. The defaults are no recommendation: a comparison passes what it compares."""

from dataclasses import dataclass

import numpy as np

Params = dict[str, np.ndarray]


@dataclass(frozen=True)
class Options:
    """Constants of `simulate`; an algorithm reads those its equations name."""

    # Local steps, all algorithms.
    clip: float | None = None  # per client, global norm of the minibatch gradient over all its parameters
    decay: float = 0.0  # decoupled, x -= eta decay x with the parameter's own rate, outside every mix
    # Alignment (fedcm, fedlada, fedadamw, fedmuon): a = alpha weights G.
    alpha: float = 0.5
    align: bool = True
    # Muon.
    beta: float = 0.9  # also the EMA of mimelite and fedmuon_lmo
    ema: bool = False  # M = beta M + (1 - beta) g instead of beta M + g
    nesterov: bool = False  # the direction is beta M + (1 - beta) g (EMA) or beta M + g
    warm_start: bool = True
    orthogonalize: bool = True
    mix_order: str = "polar_then_mix"  # or mix_then_polar
    shape_scale: str = "none"  # view, kernel
    muon_multiplier: float = 1.0  # of the rate of the matrices
    # AdamW: all parameters of local_adamw, fedadamw, fedlada, the ones that are not matrices beside Muon.
    aux: frozenset[str] = frozenset()  # names that leave Muon although they are matrices
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    aux_decay: float | None = None  # None: as `decay`
    keep_aux: bool = False  # muloco: the AdamW moments outlive the round as M does
    # fedadamw, as the published scripts do it.
    single_counter: bool = False  # the first moment is corrected by the global step as well
    full_v: bool = False  # v itself is averaged, not its mean over each parameter
    # fedprox and feddyn.
    mu: float = 0.1
    # Server.
    server: str = "sgd"  # adam, yogi, adagrad
    server_lr: float = 1.0
    server_momentum: float = 0.0
    server_nesterov: bool = False
    server_beta1: float = 0.9
    server_beta2: float = 0.99
    tau: float = 1e-3

    @property
    def a(self) -> float:
        """The weight of G in a local step."""
        return self.alpha if self.align else 0.0

    def is_matrix(self, name: str, value: np.ndarray) -> bool:
        """Whether a parameter takes a Muon step."""
        return value.ndim >= 2 and name not in self.aux
