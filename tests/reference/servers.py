"""What the server makes of a round's results: (round, state) -> new state, one function an algorithm.

`state` holds x, G, Mbar and whatever the algorithm shares. G and Mbar are written by `federation.simulate`.
"""

from dataclasses import dataclass

import numpy as np

from .clients import State, zeros
from .options import Options, Params

# Entries of a client's result that stay with it until the next round it takes part in.
KEPT = {"scaffold": ("c_i",), "feddyn": ("h_i",), "muloco": ("M", "adam"), "fedmuon_lmo": ("M", "C_i")}


@dataclass(frozen=True)
class Round:
    """A round's results by client id: the cohort's weights p, the population's weights q, steps K, x_i, the rest."""

    p: dict[int, float]
    q: dict[int, float]
    K: dict[int, int]
    x: dict[int, Params]
    other: dict[int, State]
    opt: Options

    def mean(self, values: dict[int, Params]) -> Params:
        """sum p_i values_i, over the cohort's clients with samples and steps; p sums to one."""
        return weighted_sum(self.p, values)

    def change(self, x0: Params) -> dict[int, Params]:
        """x_i - x0 of every client."""
        return {i: {n: x_i[n] - x0[n] for n in x_i} for i, x_i in self.x.items()}

    def returned(self, key: str) -> dict[int, Params]:
        """One entry of what each client returned."""
        return {i: other[key] for i, other in self.other.items()}


def weighted_sum(weights: dict[int, float], values: dict[int, Params]) -> Params:
    """sum w_i values_i, client by client."""
    names = next(iter(values.values()))
    return {n: np.asarray(sum(weights[i] * values[i][n] for i in values)) for n in names}


def initial(x0: Params, opt: Options) -> State:
    """G = 0, Mbar = 0 on the matrices, control variates and moments 0, FedLADA's vh = eps^2, 2003.00295's v = tau^2."""
    filled = {"vh": opt.eps**2, "server_v": opt.tau**2}
    state: State = {key: {n: np.full_like(v, value) for n, v in x0.items()} for key, value in filled.items()}
    state |= {key: zeros(x0) for key in ("G", "c", "h", "m", "v", "C", "server_m", "buf")}
    matrices = {n: v for n, v in x0.items() if opt.is_matrix(n, v)}
    return state | {"x": x0, "Mbar": zeros(matrices), "steps": {"count": np.array(0)}}


def apply(state: State, D: Params, opt: Options) -> State:
    """x after the server optimizer's step on the pseudo-gradient -D: SGD as torch.optim has it, or 2003.00295."""
    x = state["x"]
    if opt.server == "sgd":
        # torch.optim.SGD: buf = mu buf + g, x -= lr buf, Nesterov x -= lr (g + mu buf), here with g = -D.
        buf = {n: opt.server_momentum * state["buf"][n] - D[n] for n in x}
        ahead = {n: opt.server_momentum * buf[n] - D[n] if opt.server_nesterov else buf[n] for n in x}
        return state | {"buf": buf, "x": {n: x[n] - opt.server_lr * ahead[n] for n in x}}
    m = {n: opt.server_beta1 * state["server_m"][n] + (1 - opt.server_beta1) * D[n] for n in x}
    v = {n: _second_moment(state["server_v"][n], D[n] ** 2, opt) for n in x}
    new = {n: x[n] + opt.server_lr * m[n] / (np.sqrt(v[n]) + opt.tau) for n in x}
    return state | {"server_m": m, "server_v": v, "x": new}


def _second_moment(v: np.ndarray, square: np.ndarray, opt: Options) -> np.ndarray:
    if opt.server == "adam":
        return opt.server_beta2 * v + (1 - opt.server_beta2) * square
    if opt.server == "yogi":
        return v - (1 - opt.server_beta2) * square * np.sign(v - square)
    if opt.server == "adagrad":
        return v + square
    raise ValueError(f"server {opt.server!r}: sgd, adam, yogi or adagrad")


def fedavg(result: Round, state: State) -> State:
    """x += D, through the server optimizer."""
    return apply(state, result.mean(result.change(state["x"])), result.opt)


def scaffold(result: Round, state: State) -> State:
    """c += (1/N) sum (c_i+ - c_i) over the clients that took part."""
    step = weighted_sum(result.q, result.returned("change"))
    return fedavg(result, state) | {"c": {n: state["c"][n] + step[n] for n in step}}


def feddyn(result: Round, state: State) -> State:
    """h -= mu (1/N) sum (x_i - x0); x = mean x_i - h/mu. The server optimizer has no part in it."""
    mu = result.opt.mu
    step = weighted_sum(result.q, result.change(state["x"]))
    h = {n: state["h"][n] - mu * step[n] for n in step}
    mean = result.mean(result.x)
    return state | {"h": h, "x": {n: mean[n] - h[n] / mu for n in h}}


def fednova(result: Round, state: State) -> State:
    """2007.07481: x += (sum p_i tau_i) sum p_i (x_i - x0)/tau_i, tau_i = K_i for plain SGD."""
    tau = sum(result.p[i] * result.K[i] for i in result.p)
    change = result.change(state["x"])
    normalised = {i: {n: d[n] / result.K[i] for n in d} for i, d in change.items()}
    return apply(state, {n: tau * d for n, d in result.mean(normalised).items()}, result.opt)


def mimelite(result: Round, state: State) -> State:
    """m <- (1-beta) sum p_i grad f_i(x0) + beta m."""
    beta, full = result.opt.beta, result.mean(result.returned("full_gradient"))
    return fedavg(result, state) | {"m": {n: (1 - beta) * full[n] + beta * state["m"][n] for n in full}}


def fedlada(result: Round, state: State) -> State:
    """vh <- mean vh_i."""
    return fedavg(result, state) | {"vh": result.mean(result.returned("vh"))}


def fedadamw(result: Round, state: State) -> State:
    """v <- mean of the clients' block means (or of v itself); the global step moves on by the longest client's K.

    The paper has one K for all. With different K_i the longest is our reading: t never runs behind a client's own.
    """
    steps = {"count": state["steps"]["count"] + max(result.K.values())}
    return fedavg(result, state) | {"v": result.mean(result.returned("v")), "steps": steps}


def fedmuon_lmo(result: Round, state: State) -> State:
    """C += (1/N) sum dC_i; x <- ((N-S)/N) x + (1/N) sum x_i, that is x += sum q_i (x_i - x)."""
    control = weighted_sum(result.q, result.returned("change"))
    step = weighted_sum(result.q, result.change(state["x"]))
    C = {n: state["C"][n] + control[n] for n in control}
    return state | {"C": C, "x": {n: state["x"][n] + step[n] for n in step}}
