"""What a client does in a round: one function an algorithm, (job, shared, kept) -> (x_i, what else it made).

`job` is the client's work of this round, `shared` what the server sends, `kept` what this client kept from the
last round it took part in (empty before). The second result goes to the server rule and, for the entries that
servers.KEPT names, back into `kept`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .options import Options, Params
from .polar import polar, shape_scale

State = dict[str, Any]  # entries are Params, or AdamStates by name under "adam"
AdamState = tuple[np.ndarray, np.ndarray, int]  # m, v, steps taken


@dataclass(frozen=True)
class Job:
    """x0, the index arrays of the local steps, the rate of each parameter, the raw gradient g(x, indices)."""

    x0: Params
    batches: Sequence[np.ndarray]
    rates: dict[str, float]
    raw_gradient: Callable[[Params, np.ndarray], Params]
    full_gradient: Callable[[Params], Params]
    opt: Options

    def gradient(self, x: Params, batch: np.ndarray) -> Params:
        """The minibatch gradient, clipped as torch.nn.utils.clip_grad_norm_ does; corrections are added after it."""
        g = self.raw_gradient(x, batch)
        if self.opt.clip is None:
            return g
        norm = np.sqrt(sum((value**2).sum() for value in g.values()))
        return {name: value * min(1.0, self.opt.clip / (norm + 1e-6)) for name, value in g.items()}

    def step(self, x: Params, direction: Params) -> Params:
        """x - eta direction - eta lambda x."""
        return {n: x[n] - self.rates[n] * direction[n] - self.rates[n] * self._decay(n) * x[n] for n in x}

    def _decay(self, name: str) -> float:
        if self.opt.aux_decay is None or self.opt.is_matrix(name, self.x0[name]):
            return self.opt.decay
        return self.opt.aux_decay


def fedavg(job: Job, shared: State, kept: State) -> tuple[Params, State]:
    """1602.05629: x -= eta g."""
    x = job.x0
    for batch in job.batches:
        x = job.step(x, job.gradient(x, batch))
    return x, {}


def fedprox(job: Job, shared: State, kept: State) -> tuple[Params, State]:
    """1812.06127: x -= eta (g + mu (x - x0))."""
    x, mu = job.x0, job.opt.mu
    for batch in job.batches:
        g = job.gradient(x, batch)
        x = job.step(x, {n: g[n] + mu * (x[n] - job.x0[n]) for n in x})
    return x, {}


def scaffold(job: Job, shared: State, kept: State) -> tuple[Params, State]:
    """1910.06378, option II: x -= eta (g - c_i + c); c_i+ = c_i - c + (x0 - x_i)/(K_i eta)."""
    x, c, c_i = job.x0, shared["c"], kept.get("c_i", zeros(job.x0))
    for batch in job.batches:
        g = job.gradient(x, batch)
        x = job.step(x, {n: g[n] - c_i[n] + c[n] for n in x})
    K = len(job.batches)
    # A round of rate zero says nothing about the gradient: c_i stays.
    new = {n: c_i[n] - c[n] + (job.x0[n] - x[n]) / (K * job.rates[n]) if job.rates[n] else c_i[n] for n in x}
    return x, {"c_i": new, "change": {n: new[n] - c_i[n] for n in x}}


def fedcm(job: Job, shared: State, kept: State) -> tuple[Params, State]:
    """2106.10874, whose alpha is our 1 - a: x -= eta ((1-a) g + a G)."""
    x, a, G = job.x0, job.opt.a, shared["G"]
    for batch in job.batches:
        g = job.gradient(x, batch)
        x = job.step(x, {n: (1 - a) * g[n] + a * G[n] for n in x})
    return x, {}


def feddyn(job: Job, shared: State, kept: State) -> tuple[Params, State]:
    """2111.04263: x -= eta (g - h_i + mu (x - x0)); h_i -= mu (x_i - x0)."""
    x, mu, h_i = job.x0, job.opt.mu, kept.get("h_i", zeros(job.x0))
    for batch in job.batches:
        g = job.gradient(x, batch)
        x = job.step(x, {n: g[n] - h_i[n] + mu * (x[n] - job.x0[n]) for n in x})
    return x, {"h_i": {n: h_i[n] - mu * (x[n] - job.x0[n]) for n in x}}


def mimelite(job: Job, shared: State, kept: State) -> tuple[Params, State]:
    """2008.03606: x -= eta ((1-beta) g + beta m), m frozen; the full gradient at x0 goes up, never clipped."""
    x, beta, m = job.x0, job.opt.beta, shared["m"]
    for batch in job.batches:
        g = job.gradient(x, batch)
        x = job.step(x, {n: (1 - beta) * g[n] + beta * m[n] for n in x})
    return x, {"full_gradient": job.full_gradient(job.x0)}


def local_adamw(job: Job, shared: State, kept: State) -> tuple[Params, State]:
    """AdamW (1711.05101) on every parameter, fresh state every round."""
    x = job.x0
    state = {n: fresh(x[n]) for n in x}
    for batch in job.batches:
        g = job.gradient(x, batch)
        direction = {}
        for n in x:
            state[n], direction[n] = adamw(state[n], g[n], job.opt)
        x = job.step(x, direction)
    return x, {}


def fedlada(job: Job, shared: State, kept: State) -> tuple[Params, State]:
    """2308.00522: x -= eta ((1-a) m/sqrt(vh) + a G), vh = max(vh, v); v and vh start at the server's mean vh.

    No bias correction and no epsilon beside the root: vh never falls below the eps^2 it starts at.
    """
    x, opt, G = job.x0, job.opt, shared["G"]
    m, v, vh = zeros(x), shared["vh"], shared["vh"]
    for batch in job.batches:
        g = job.gradient(x, batch)
        m = {n: opt.beta1 * m[n] + (1 - opt.beta1) * g[n] for n in x}
        v = {n: opt.beta2 * v[n] + (1 - opt.beta2) * g[n] ** 2 for n in x}
        vh = {n: np.maximum(vh[n], v[n]) for n in x}
        x = job.step(x, {n: (1 - opt.a) * m[n] / np.sqrt(vh[n]) + opt.a * G[n] for n in x})
    return x, {"vh": vh}


def fedadamw(job: Job, shared: State, kept: State) -> tuple[Params, State]:
    """2510.27486: x -= eta (AdamW direction + a G); m corrected by the local k, v by the global step t.

    v starts at the server's v, which is a block mean spread over its block unless `full_v`. `steps` counts the
    local steps of all rounds before this one.
    """
    x, opt, G, before = job.x0, job.opt, shared["G"], int(shared["steps"]["count"])
    m, v = zeros(x), {n: np.broadcast_to(shared["v"][n], x[n].shape) for n in x}
    for k, batch in enumerate(job.batches, start=1):
        t = before + k
        first = 1 - opt.beta1 ** (t if opt.single_counter else k)
        second = 1 - opt.beta2**t
        g = job.gradient(x, batch)
        m = {n: opt.beta1 * m[n] + (1 - opt.beta1) * g[n] for n in x}
        v = {n: opt.beta2 * v[n] + (1 - opt.beta2) * g[n] ** 2 for n in x}
        x = job.step(x, {n: m[n] / first / (np.sqrt(v[n] / second) + opt.eps) + opt.a * G[n] for n in x})
    return x, {"v": v if opt.full_v else {n: v[n].mean() for n in x}}


def local_muon(job: Job, shared: State, kept: State) -> tuple[Params, State]:
    """2510.27403's baseline: M = beta M + g from 0, x -= eta P(M); AdamW, fresh, for what is no matrix."""
    return _muon(job, {}, {})


def muloco(job: Job, shared: State, kept: State) -> tuple[Params, State]:
    """2505.23725: local Muon whose M stays with its client.

    The AdamW moments of the other parameters are fresh each round unless `keep_aux`; the paper's inner optimizer,
    like DiLoCo's, is never reset, which is `keep_aux=True`.
    """
    return _muon(job, kept.get("M", {}), kept.get("adam", {}) if job.opt.keep_aux else {})


def _muon(job: Job, M: Params, adam: dict[str, AdamState]) -> tuple[Params, State]:
    x, opt = job.x0, job.opt
    M = {n: M.get(n, np.zeros_like(x[n])) for n in x if opt.is_matrix(n, x[n])}
    adam = {n: adam.get(n, fresh(x[n])) for n in x if n not in M}
    for batch in job.batches:
        g = job.gradient(x, batch)
        direction = {}
        for n in M:
            M[n], update = momentum(M[n], g[n], opt)
            direction[n] = spectral(update, opt)
        for n in adam:
            adam[n], direction[n] = adamw(adam[n], g[n], opt)
        x = job.step(x, direction)
    return x, {"M": M, "adam": adam}


def fedmuon(job: Job, shared: State, kept: State) -> tuple[Params, State]:
    """2510.27403: M = beta M + g from Mbar; x -= eta [(1-a) P(M) + a G]; vectors (1-a) AdamW + a G.

    mix_then_polar takes P((1-a) M + a G) instead for the matrices.
    """
    x, opt, a, G = job.x0, job.opt, job.opt.a, shared["G"]
    M = {n: shared["Mbar"][n] if opt.warm_start else np.zeros_like(x[n]) for n in x if opt.is_matrix(n, x[n])}
    adam = {n: fresh(x[n]) for n in x if n not in M}
    for batch in job.batches:
        g = job.gradient(x, batch)
        direction = {}
        for n in M:
            M[n], update = momentum(M[n], g[n], opt)
            if opt.mix_order == "polar_then_mix":
                direction[n] = (1 - a) * spectral(update, opt) + a * G[n]
            elif opt.mix_order == "mix_then_polar":
                direction[n] = spectral((1 - a) * update + a * G[n], opt)
            else:
                raise ValueError(f"mix_order {opt.mix_order!r}: polar_then_mix or mix_then_polar")
        for n in adam:
            adam[n], update = adamw(adam[n], g[n], opt)
            direction[n] = (1 - a) * update + a * G[n]
        x = job.step(x, direction)
    return x, {"M": M}


def fedmuon_lmo(job: Job, shared: State, kept: State) -> tuple[Params, State]:
    """2509.26337: M_i = beta M_i + (1-beta) g, kept; x -= eta P(M_i - C_i + C); C_i <- M_i at the end.

    What is no matrix moves along the direction divided by its Euclidean norm. M_i and C_i start at 0.
    """
    x, opt, C = job.x0, job.opt, shared["C"]
    M, C_i = kept.get("M", zeros(x)), kept.get("C_i", zeros(x))
    for batch in job.batches:
        g = job.gradient(x, batch)
        M = {n: opt.beta * M[n] + (1 - opt.beta) * g[n] for n in x}
        corrected = {n: M[n] - C_i[n] + C[n] for n in x}
        x = job.step(x, {n: spectral(d, opt) if opt.is_matrix(n, d) else unit(d) for n, d in corrected.items()})
    return x, {"M": M, "C_i": M, "change": {n: M[n] - C_i[n] for n in x}}


def momentum(M: np.ndarray, g: np.ndarray, opt: Options) -> tuple[np.ndarray, np.ndarray]:
    """The new momentum and the matrix whose polar factor is the step: M itself, or Nesterov's look ahead."""
    fresh_part = (1 - opt.beta) * g if opt.ema else g
    M = opt.beta * M + fresh_part
    return M, fresh_part + opt.beta * M if opt.nesterov else M


def spectral(M: np.ndarray, opt: Options) -> np.ndarray:
    """The shape factor times P(M), or times M itself when orthogonalisation is off."""
    return shape_scale(M.shape, opt.shape_scale) * (polar(M) if opt.orthogonalize else M)


def adamw(state: AdamState, g: np.ndarray, opt: Options) -> tuple[AdamState, np.ndarray]:
    """The new state and the direction mh/(sqrt(vh) + eps), both moments corrected by the steps of this state."""
    m, v, k = state
    m, v, k = opt.beta1 * m + (1 - opt.beta1) * g, opt.beta2 * v + (1 - opt.beta2) * g**2, k + 1
    return (m, v, k), m / (1 - opt.beta1**k) / (np.sqrt(v / (1 - opt.beta2**k)) + opt.eps)


def fresh(value: np.ndarray) -> AdamState:
    """Adam's state before the first step."""
    return np.zeros_like(value), np.zeros_like(value), 0


def unit(d: np.ndarray) -> np.ndarray:
    """d divided by its Euclidean norm; 0 for 0."""
    norm = np.sqrt((d**2).sum())
    return d / norm if norm > 0 else d


def zeros(x: Params) -> Params:
    """Zeros of the shapes of x."""
    return {n: np.zeros_like(value) for n, value in x.items()}
