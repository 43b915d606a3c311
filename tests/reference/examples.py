"""Small federations to run the judge, or the product, on."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .models import conv, conv_parameters, mlp, mlp_parameters, quadratic
from .options import Params

CLOSE: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-13}

MODELS: dict[str, Any] = {
    "mlp": (mlp, lambda rng: mlp_parameters(rng, 4, 5, 3), (4,)),
    "conv": (conv, lambda rng: conv_parameters(rng, 2, 3, 4, 3), (1, 3, 4)),
}


def federation(
    name: str = "mlp", sizes: Sequence[int] = (6, 9, 4), K: Sequence[Sequence[int]] = ((2, 3, 1),), seed: int = 0
) -> tuple[Params, dict[str, Any]]:
    """Parameters and the arguments of `simulate` for clients of these sizes; K[r][i] local steps of three samples."""
    rng = np.random.default_rng(seed)
    model, parameters, shape = MODELS[name]
    clients = [(rng.standard_normal((n, *shape)), rng.integers(0, 3, n)) for n in sizes]
    batches = [[[rng.choice(n, 3) for _ in range(k)] for n, k in zip(sizes, row, strict=True)] for row in K]
    arguments = {"clients": clients, "batches": batches, "rounds": len(K), "model": model}
    return parameters(rng), arguments | {"cohort": [range(len(sizes))] * len(K), "eta": [0.1] * len(K)}


def quadratics(
    targets: Sequence[Any], K: Sequence[Sequence[int]], copies: Sequence[int] | None = None
) -> dict[str, Any]:
    """Clients with f_i(x) = ||x - b_i||^2/2, of copies[i] equal samples; K[r][i] full-batch steps."""
    copies = copies or [1] * len(targets)
    clients = [(np.stack([np.asarray(b, float)] * n), np.zeros(n, int)) for b, n in zip(targets, copies, strict=True)]
    batches = [[[np.arange(n)] * k for n, k in zip(copies, row, strict=True)] for row in K]
    arguments = {"clients": clients, "batches": batches, "rounds": len(K), "model": quadratic}
    return arguments | {"cohort": [range(len(targets))] * len(K), "eta": [0.1] * len(K)}
