"""The polar factor P(M) = U V^T by SVD, and the factor that scales a Muon step with the shape."""

import math

import numpy as np


def polar(M: np.ndarray) -> np.ndarray:
    """P(M), of M's shape: 2-D as it is, 3-D as a stack over the leading dimension, 4-D and more as [out, rest].

    Directions with a singular value of at most max(m, n) eps s_max count as absent, so a rank-deficient M gives a
    partial isometry and P(0) = 0. Division by the largest entry first keeps 1e-300 and 1e300 harmless.
    """
    if M.ndim < 2:
        raise ValueError(f"a polar factor needs a matrix, got shape {M.shape}")
    return np.stack([_polar(matrix) for matrix in matrices(M)]).reshape(M.shape)


def matrices(M: np.ndarray) -> np.ndarray:
    """The view of M as a stack of matrices [stack, rows, cols]."""
    if M.ndim == 3:
        return M
    return M.reshape(1, M.shape[0], -1)


def _polar(M: np.ndarray) -> np.ndarray:
    largest = np.abs(M).max(initial=0.0)
    if largest == 0:
        return np.zeros_like(M)
    U, s, Vt = np.linalg.svd(M / largest, full_matrices=False)
    present = s > max(M.shape) * np.finfo(np.float64).eps * s[0]
    return U[:, present] @ Vt[present]


def shape_scale(shape: tuple[int, ...], kind: str) -> float:
    """What multiplies P(M). `view` reads rows and columns off the matrix view, `kernel` off the tensor's last two.

    The published code uses `kernel`: kh/kw for a convolution, which is 1 whenever the kernel is square.
    """
    if kind == "none":
        return 1.0
    if kind == "view":
        _, rows, cols = matrices(np.empty(shape)).shape
        return math.sqrt(max(1.0, rows / cols))
    if kind == "kernel":
        return math.sqrt(max(1.0, shape[-2] / shape[-1]))
    raise ValueError(f"shape scale {kind!r}: none, view or kernel")
