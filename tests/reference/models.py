"""Three losses with gradients derived by hand. Each maps (x, X, y) to (mean loss of the batch, gradient by name)."""

import numpy as np

from .options import Params


def mlp(x: Params, X: np.ndarray, y: np.ndarray) -> tuple[float, Params]:
    """`Sequential(Linear(d, h), Tanh(), Linear(h, c))` under cross-entropy; X is [n, d], y is [n] class numbers."""
    hidden = np.tanh(X @ x["0.weight"].T + x["0.bias"])
    loss, d_logits = _cross_entropy(hidden @ x["2.weight"].T + x["2.bias"], y)
    d_before = (d_logits @ x["2.weight"]) * (1 - hidden**2)  # tanh' = 1 - tanh^2
    gradient = {
        "0.weight": d_before.T @ X,
        "0.bias": d_before.sum(0),
        "2.weight": d_logits.T @ hidden,
        "2.bias": d_logits.sum(0),
    }
    return loss, gradient


def conv(x: Params, X: np.ndarray, y: np.ndarray) -> tuple[float, Params]:
    """`Sequential(Conv2d(1, o, 3, padding=1), Tanh(), Flatten(), Linear(o*h*w, c))`; X is [n, 1, h, w]."""
    padded = np.pad(X, ((0, 0), (0, 0), (1, 1), (1, 1)))
    patches = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))  # [n, 1, h, w, 3, 3]
    before = np.einsum("nchwij,ocij->nohw", patches, x["0.weight"]) + x["0.bias"][:, None, None]
    hidden = np.tanh(before)
    flat = hidden.reshape(len(X), -1)
    loss, d_logits = _cross_entropy(flat @ x["3.weight"].T + x["3.bias"], y)
    d_before = (d_logits @ x["3.weight"]).reshape(hidden.shape) * (1 - hidden**2)
    gradient = {
        "0.weight": np.einsum("nohw,nchwij->ocij", d_before, patches),
        "0.bias": d_before.sum((0, 2, 3)),
        "3.weight": d_logits.T @ flat,
        "3.bias": d_logits.sum(0),
    }
    return loss, gradient


def quadratic(x: Params, X: np.ndarray, y: np.ndarray) -> tuple[float, Params]:
    """Mean over the samples of ||x - b||^2 / 2, one parameter "x" of any shape, b = X[j]; gradient x - mean b."""
    difference = x["x"] - X
    return 0.5 * float((difference**2).sum()) / len(X), {"x": difference.mean(0)}


def _cross_entropy(logits: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean of -log softmax(logits)[y], and its derivative (softmax - onehot)/n, of shape [n, c]."""
    shifted = logits - logits.max(1, keepdims=True)
    log_probability = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    rows = np.arange(len(y))
    derivative = np.exp(log_probability)
    derivative[rows, y] -= 1
    return float(-log_probability[rows, y].mean()), derivative / len(y)


def mlp_parameters(rng: np.random.Generator, d: int, h: int, c: int) -> Params:
    """Normal parameters of deviation 0.5 for `mlp`, under the names PyTorch gives them."""
    shapes = {"0.weight": (h, d), "0.bias": (h,), "2.weight": (c, h), "2.bias": (c,)}
    return {name: 0.5 * rng.standard_normal(shape) for name, shape in shapes.items()}


def conv_parameters(rng: np.random.Generator, o: int, h: int, w: int, c: int) -> Params:
    """Normal parameters of deviation 0.5 for `conv` on h x w images, under the names PyTorch gives them."""
    shapes = {"0.weight": (o, 1, 3, 3), "0.bias": (o,), "3.weight": (c, o * h * w), "3.bias": (c,)}
    return {name: 0.5 * rng.standard_normal(shape) for name, shape in shapes.items()}
