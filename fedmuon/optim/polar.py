"""The polar factor U V^T of a matrix M = U S V^T: the direction of a Muon step.

Three methods, one contract: shape and dtype of the input, P(0) = 0, P(c M) = P(M) for c > 0, input never written to.

* `polar_express` (arXiv 2505.16932): odd quintics X <- a X + (b A + c A^2) X with A = X X^T, each step with the
  coefficients that are optimal for where the step before has left the singular values. Converges. Wide and tall
  matrices are iterated on their small Gram matrix.
* `newton_schulz`: the quintic of Muon with one fixed triple. Cheap and rough: singular values end in 0.68..1.14.
* `svd`: exact, in float64; the partial isometry of a rank-deficient matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from fedmuon.errors import UsageError, nearest

Quintic = tuple[float, float, float]

DEFAULT_STEPS = {"polar_express": 7, "newton_schulz": 5}
_METHODS = (*DEFAULT_STEPS, "svd")
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}

_NEWTON_SCHULZ: Quintic = (3.4445, -4.7750, 2.0315)
# Minimax quintics for singular values in [1e-3, 1] (2505.16932, cushion 0.02407); the tests derive them anew.
_POLAR_EXPRESS: tuple[Quintic, ...] = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
)
_LIMIT: Quintic = (1.875, -1.25, 0.375)
_WIDE = 3  # columns a row from which on the iteration runs on the Gram matrix
# The early quintics are steep above 1, where rounding can push a singular value: they are made for [0, 1.01] instead.
_SAFETY = 1.01


def coefficients(method: str, steps: int) -> list[Quintic]:
    """The triples (a, b, c) of `steps` iterations x <- a x + b x^3 + c x^5, for singular values of at most 1."""
    if method == "newton_schulz":
        return [_NEWTON_SCHULZ] * steps
    safe = [(a / _SAFETY, b / _SAFETY**3, c / _SAFETY**5) for a, b, c in _POLAR_EXPRESS]
    return (safe + [_LIMIT] * (steps - len(safe)))[:steps]


def polar(
    M: Tensor, method: str = "polar_express", steps: int | None = None, dtype: str | torch.dtype | None = None
) -> Tensor:
    """The polar factor of every matrix in the stack `M`, [..., rows, cols] -> [..., rows, cols].

    `steps`: iterations, default 7 for `polar_express` and 5 for `newton_schulz`; `svd` has none.
    `dtype`: what the iterations compute in, "bfloat16", "float32" or "float64"; None is float64 for float64 inputs and
    float32 for all others. `svd` always computes in float64 and drops singular values of at most
    max(rows, cols) * eps * s_max, eps being that of the input (of float32 for 16-bit inputs: theirs, times the side
    of a usual layer, is more than 1 and would drop everything).

    The iterations have no such threshold and no data-dependent branch: they can be captured in a CUDA graph and used
    under `torch.func.vmap`. A matrix with a NaN or an infinity gives non-finite values, whatever the method.
    Raises UsageError for an unknown method or dtype, steps < 1, and for what is no stack of real matrices.
    """
    _check(M, method, steps)
    compute = _compute_dtype(M.dtype, dtype)
    if M.numel() == 0:
        return M.clone()
    with torch.autocast(M.device.type, enabled=False):
        if method == "svd":
            return _by_svd(M)
        return _by_iteration(M, coefficients(method, steps or DEFAULT_STEPS[method]), compute)


def each(
    matrices: Sequence[Tensor],
    method: str,
    steps: int | None = None,
    dtype: str | torch.dtype | None = None,
    together: bool | None = None,
) -> list[Tensor]:
    """`polar` of several stacks [..., rows, cols]; `together`: those of one shape in one call, None: on a GPU.

    There a product of many small matrices costs hardly more than that of one. On a CPU it costs the sum, and putting
    the matrices together comes on top (docs/polar.md).
    """
    groups: dict[object, list[int]] = {}
    for number, M in enumerate(matrices):
        joined = M.device.type != "cpu" if together is None else together
        groups.setdefault((M.shape[-2:], M.dtype) if joined else number, []).append(number)
    found: dict[int, Tensor] = {}
    for members in groups.values():
        stacks = [matrices[number] for number in members]
        if len(stacks) == 1:
            found[members[0]] = polar(stacks[0], method, steps, dtype)
            continue
        flat = [M.reshape(-1, *M.shape[-2:]) for M in stacks]
        parts = polar(torch.cat(flat), method, steps, dtype).split([len(M) for M in flat])
        found.update({n: P.reshape(M.shape) for n, M, P in zip(members, stacks, parts, strict=True)})
    return [found[number] for number in range(len(matrices))]


def _by_iteration(M: Tensor, quintics: list[Quintic], compute: torch.dtype, wide: float = _WIDE) -> Tensor:
    X = M.reshape(-1, *M.shape[-2:])
    if tall := X.shape[-2] > X.shape[-1]:
        X = X.mT  # the Gram matrix is then that of the short side
    X = _normalised(X, torch.promote_types(M.dtype, compute)).to(compute)
    X = _on_gram(X, quintics) if X.shape[-1] >= wide * X.shape[-2] else _on_matrix(X, quintics)
    return (X.mT if tall else X).to(M.dtype).reshape(M.shape)


def _on_matrix(X: Tensor, quintics: Sequence[Quintic]) -> Tensor:
    for a, b, c in quintics:
        A = torch.bmm(X, X.mT)
        B = torch.baddbmm(A, A, A, beta=b, alpha=c)
        X = torch.baddbmm(X, B, X, beta=a)
    return X


def _on_gram(X: Tensor, quintics: Sequence[Quintic]) -> Tensor:
    """The same iterates as Q X, where Q, a polynomial in the Gram matrix, is made of small square products only.

    The Gram matrix squares the singular values, and rounding that it and Q have seen differently is never made good:
    so X is multiplied out after two steps, which have lifted the small singular values by an order of magnitude, and
    in 16 bits after every two. The error is then that of `_on_matrix` (docs/polar.md).
    """
    first, every = 2, 2 if X.dtype in (torch.bfloat16, torch.float16) else 5
    bounds = [0, *range(first, len(quintics), every), len(quintics)]
    for start, end in pairwise(bounds):
        X = torch.bmm(_polynomial(torch.bmm(X, X.mT), quintics[start:end]), X)
    return X


def _polynomial(G: Tensor, quintics: Sequence[Quintic]) -> Tensor:
    """Q such that Q X is what the quintics make of X with the Gram matrix G = X X^T."""
    Q = None
    for step, (a, b, c) in enumerate(quintics, start=1):
        Z = torch.baddbmm(G, G, G, beta=b, alpha=c)
        Z.diagonal(dim1=-2, dim2=-1).add_(a)
        Q = Z if Q is None else torch.bmm(Z, Q)
        if step < len(quintics):
            G = torch.bmm(torch.bmm(Z, G), Z)  # polynomials in G commute
    assert Q is not None
    return Q


def _normalised(X: Tensor, dtype: torch.dtype) -> Tensor:
    """Each matrix divided by its Frobenius norm: no singular value exceeds 1. Zero stays zero, NaN stays NaN."""
    X = X.to(dtype)
    peak = X.abs().amax(dim=(-2, -1), keepdim=True)
    X = X / torch.where(peak == 0, torch.ones_like(peak), peak)  # squares of 1e-30 would vanish, of 1e30 overflow
    # The largest entry is 1 now, so the norm is at least 1 unless the matrix is zero.
    return X / torch.linalg.vector_norm(X, dim=(-2, -1), keepdim=True).clamp_min(1)


def _by_svd(M: Tensor) -> Tensor:
    finite = M.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    X = torch.where(finite, M, torch.zeros_like(M)).double()  # LAPACK raises on NaN, in one matrix for the whole stack
    U, S, Vh = torch.linalg.svd(X, full_matrices=False)
    eps = torch.finfo(M.dtype if M.dtype in (torch.float32, torch.float64) else torch.float32).eps
    kept = max(M.shape[-2:]) * eps * S[..., :1] < S
    P = (U * kept.unsqueeze(-2)) @ Vh
    return torch.where(finite, P, torch.full_like(P, math.nan)).to(M.dtype)


def _compute_dtype(given: torch.dtype, asked: str | torch.dtype | None) -> torch.dtype:
    if asked is None:
        return torch.float64 if given == torch.float64 else torch.float32
    name = str(asked).removeprefix("torch.")
    if name not in _DTYPES:
        hint = nearest(name, _DTYPES)
        raise UsageError(f"algorithm.polar.dtype={name} is unknown{hint}: use {', '.join(_DTYPES)} or null")
    return _DTYPES[name]


def _check(M: Tensor, method: str, steps: int | None) -> None:
    if method not in _METHODS:
        hint = nearest(str(method), _METHODS)
        raise UsageError(f"algorithm.polar.method={method} is unknown{hint}: use one of {', '.join(_METHODS)}")
    if steps is not None and steps < 1:
        raise UsageError(f"algorithm.polar.steps={steps} is too few: use 1 or more, or null for the method's default")
    if M.ndim < 2 or not M.dtype.is_floating_point:
        raise UsageError(
            f"polar: the input is {M.dtype} of shape {tuple(M.shape)}, but a stack of real matrices [..., rows, cols] "
            "is needed: reshape a vector to one row, convert other dtypes"
        )
