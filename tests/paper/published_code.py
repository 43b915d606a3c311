"""What the authors' published code of FedMuon (arXiv 2510.27403) computes, in float64 NumPy: two pages from reading it.

Nothing here comes from the package, nor from tests/reference, which follows the paper's equations instead.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Code:
    """The options of its command line (lr, alpha, gamma) and the constants written into it."""

    lr: float  # --lr
    muon: float  # --alpha: Muon's rate against AdamW's
    gamma: float = 0.5  # --gamma: weight of the alignment
    momentum: float = 0.98
    decay: float = 0.01
    clip: float = 10.0
    aligned: bool = True  # False: its "FedMuon", the baseline that the paper calls Local Muon
    eps: float = 1e-7  # beside the norm, before Newton-Schulz


def quintic(G: np.ndarray, eps: float) -> np.ndarray:
    """Five Newton-Schulz steps, as in KellerJordan/Muon but for the precision."""
    X = G / (np.linalg.norm(G) + eps)
    if tall := X.shape[0] > X.shape[1]:
        X = X.T
    for _ in range(5):
        A = X @ X.T
        X = 3.4445 * X + (-4.7750 * A + 2.0315 * A @ A) @ X
    return X.T if tall else X


def muon_update(g: np.ndarray, M: np.ndarray, code: Code) -> tuple[np.ndarray, np.ndarray]:
    """(update, M): EMA, Nesterov, polar factor of [out, rest], factor by the parameter's last two dimensions."""
    M = code.momentum * M + (1 - code.momentum) * g
    look_ahead = (1 - code.momentum) * g + code.momentum * M
    P = quintic(look_ahead.reshape(len(g), -1), code.eps).reshape(g.shape)
    return P * max(1.0, g.shape[-2] / g.shape[-1]) ** 0.5, M


def client(
    x: Arrays, batches: Sequence, gradient: Callable, lr: float, aligned: Arrays, M: Arrays, code: Code
) -> tuple[Arrays, Arrays]:
    """One client's round: (x_i - x, M_i). `aligned` is what the code calls ps_c, M the mean momentum."""
    start, x, M = x, dict(x), dict(M)
    one = {n: np.zeros_like(v) for n, v in x.items() if v.ndim < 2}  # AdamW's moments, fresh in every round
    two = {n: np.zeros_like(v) for n, v in one.items()}
    own = 1 - code.gamma if code.aligned else 1.0
    for k, batch in enumerate(batches, start=1):
        g = gradient(x, batch)
        norm = np.sqrt(sum((v**2).sum() for v in g.values()))
        g = {n: v * min(1.0, code.clip / (norm + 1e-6)) for n, v in g.items()}
        for n in x:
            if x[n].ndim >= 2:
                rate = lr * code.muon * own
                update, M[n] = muon_update(g[n], M[n], code)
            else:
                rate = lr * own
                one[n] = 0.9 * one[n] + 0.1 * g[n]
                two[n] = 0.95 * two[n] + 0.05 * g[n] ** 2
                update = one[n] / (1 - 0.9**k) / (np.sqrt(two[n] / (1 - 0.95**k)) + 1e-10)
            x[n] = x[n] * (1 - rate * code.decay) - rate * update
            if code.aligned:
                x[n] = x[n] + aligned[n] * code.gamma * lr / len(batches)
    return {n: x[n] - start[n] for n in x}, M


def run(
    x: Arrays, work: Sequence[Sequence[tuple[Sequence, Callable]]], factors: Sequence[float], code: Code
) -> tuple[Arrays, Arrays]:
    """(x, mean M) after the rounds; work[r] has (batches, gradient) of each client of the cohort."""
    aligned = {n: np.zeros_like(v) for n, v in x.items()}
    M = {n: np.zeros_like(v) for n, v in x.items() if v.ndim >= 2}
    fresh = dict(M)
    for cohort, factor in zip(work, factors, strict=True):
        lr = code.lr * factor
        results = [client(x, *one, lr, aligned, M if code.aligned else fresh, code) for one in cohort]
        D = {n: sum(change[n] for change, _ in results) / len(results) for n in x}
        aligned = {n: d / lr for n, d in D.items()}
        M = {n: sum(m[n] for _, m in results) / len(results) for n in M}
        x = {n: x[n] + D[n] for n in x}
    return x, M
