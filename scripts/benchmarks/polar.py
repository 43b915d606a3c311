"""Error and cost of the polar factor."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.table import Table, alternating
from fedmuon.optim.polar import _by_iteration, coefficients, each, polar

SHAPES = ((64, 576), (192, 768), (120, 400), (10, 84), (16, 150), (10, 64, 576), (64, 64), (192, 192))
ON_GPU = (30, 512, 4608)  # the largest layers of ten ResNet-18: seconds on a CPU
LOW_RANK = ((64, 576, 20), (120, 400, 5))
NETWORKS = {  # shapes of the matrices: one by one, or those of one shape together?
    "lenet5": ((6, 25), (16, 150), (120, 400), (84, 120), (10, 84)),
    "vit_tiny, depth 3": ((192, 48), *((576, 192), (192, 192), (768, 192), (192, 768)) * 3, (100, 192)),
    "resnet18, 64 channels": ((64, 27), *((64, 576),) * 4),
}
CHOICES: tuple[tuple[str, int | None], ...] = (
    *(("polar_express", steps) for steps in (4, 5, 6, 7, 8, 9)),
    *(("newton_schulz", steps) for steps in (5, 10)),
    ("svd", None),
)
FEW: tuple[tuple[str, int | None], ...] = (
    *(("polar_express", steps) for steps in (7, 9)),
    ("newton_schulz", 5),
    ("svd", None),
)


def torch_muon(M: Tensor) -> Tensor:
    """A first step of torch.optim.Muon, one matrix after the other as it has it, less its factor for the shape."""
    matrices = [torch.nn.Parameter(torch.zeros_like(one)) for one in M.reshape(-1, *M.shape[-2:])]
    for p, one in zip(matrices, M.reshape(-1, *M.shape[-2:]), strict=True):
        p.grad = one
    torch.optim.Muon(matrices, lr=1.0, weight_decay=0.0, momentum=0.0, nesterov=False).step()
    factor = math.sqrt(max(1.0, M.shape[-2] / M.shape[-1]))
    return torch.stack([p.detach() for p in matrices]).reshape(M.shape) / -factor


def torch_svd(M: Tensor) -> Tensor:
    """What one would write without this package; a full-size arbitrary direction where M has none."""
    U, _, Vh = torch.linalg.svd(M, full_matrices=False)
    return U @ Vh


def accuracy(P: Tensor, U: Tensor, Vh: Tensor) -> dict[str, float]:
    """How far P is from U Vh, [..., rows, rank] @ [..., rank, cols]; its singular values on that range and off it."""
    exact, P = U @ Vh, P.double()
    inside = U.mT @ P @ Vh.mT
    on_range = torch.linalg.svdvals(inside)
    return {
        "error": float((P - exact).norm() / exact.norm()),
        "s_min": float(on_range.min()),
        "s_max": float(on_range.max()),
        "null": float(torch.linalg.matrix_norm(P - U @ inside @ Vh, ord=2).max()),
    }


def polar_case(name: str, M: Tensor, rank: int, choices: Any, dtype: str | None, repeats: int) -> list[dict[str, Any]]:
    """Rows of one input: every choice and torch.linalg.svd, timed in turns."""
    U, _, Vh = torch.linalg.svd(M.double(), full_matrices=False)
    U, Vh = U[..., :rank], Vh[..., :rank, :]
    ways: list[tuple[str, int | None, str, Callable[[], Tensor]]] = [
        (method, steps, dtype or "default", lambda method=method, steps=steps: polar(M, method, steps, dtype))
        for method, steps in choices
    ]
    if max(M.shape[-2:]) >= 3 * min(M.shape[-2:]):  # what `polar` does only with matrices that are nearer to square
        compute = getattr(torch, dtype or "float32")
        for method, steps in (("polar_express", 7), ("newton_schulz", 5)):
            on_matrix = partial(_by_iteration, M, coefficients(method, steps), compute, math.inf)
            ways.append((f"{method}, full matrix", steps, dtype or "default", on_matrix))
    if M.dtype == torch.float32 and dtype is None:
        ways.append(("torch.linalg.svd", None, "float32", lambda: torch_svd(M)))
        ways.append(("torch.optim.Muon", 5, "bfloat16", lambda: torch_muon(M)))
    milliseconds = alternating([way for *_, way in ways], repeats)
    return [
        {
            "shape": " x ".join(map(str, M.shape)), "input": name, "method": method, "steps": steps,
            "computed in": "float64" if method == "svd" else compute.replace("default", "float32"),
            **accuracy(way(), U, Vh), "ms": ms,
        }
        for (method, steps, compute, way), ms in zip(ways, milliseconds, strict=True)
    ]  # fmt: skip


def polar_factor(arguments: argparse.Namespace) -> Table:
    """Every method on Gaussian matrices, some on those of low rank and in bfloat16; layers one by one or together."""
    generator = torch.Generator().manual_seed(0)
    rows: list[dict[str, Any]] = []

    def add(name: str, M: Tensor, rank: int, choices: Any = FEW, dtype: str | None = None) -> None:
        rows.extend(polar_case(name, M.to(arguments.device), rank, choices, dtype, arguments.repeats))

    for shape in SHAPES:
        add("Gaussian", torch.randn(shape, generator=generator), min(shape[-2:]), CHOICES)
    for m, n, rank in LOW_RANK:
        left, right = (torch.randint(-3, 4, shape, generator=generator).float() for shape in ((m, rank), (rank, n)))
        add(f"exact rank {rank}", left @ right, rank)
        add(f"exact rank {rank}", left @ right, rank, FEW[:3], "bfloat16")
    for shape in ((64, 576), *((ON_GPU,) if arguments.device == "cuda" else ())):
        M = torch.randn(shape, generator=generator).bfloat16()
        add("bfloat16", M, shape[-2])
        add("bfloat16", M, shape[-2], FEW[:3], "bfloat16")
    for network, shapes in NETWORKS.items():
        stacks = [torch.randn(10, *shape, generator=generator).to(arguments.device) for shape in shapes]
        ways = [partial(each, stacks, "polar_express", together=together) for together in (False, True)]
        figures = dict.fromkeys(("error", "s_min", "s_max", "null"))
        for how, ms in zip(("one by one", "together"), alternating(ways, arguments.repeats), strict=True):
            same = {"method": "polar_express", "steps": 7, "computed in": "float32", **figures, "ms": ms}
            rows.append({"shape": f"10 clients of {network}", "input": f"Gaussian, {how}", **same})
    note = (
        "error: ||P - UV^T|| / ||UV^T|| (Frobenius) against an SVD in float64; s_min, s_max: singular values of P on "
        "the input's range; null: the largest one off it; ms: median for the whole stack, all of one input in turns."
    )
    return Table("The polar factor", note, rows)
