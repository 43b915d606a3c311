"""Lossy codes for the tensors of a message: what the receiver makes of them, and their size, known from shapes alone.

A code is applied by `Channel` only where it is smaller than the tensor itself. `whole`: a model can be coded as it is,
as with 8 bits or bfloat16 a number; else only its change, since a model itself is neither of low rank nor sparse.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fedmuon.config import Link
from fedmuon.optim.routing import matrix_view


class Code(Protocol):
    """A lossy code: `size` in bytes for a shape and bytes a number, `decoded` what arrives of a tensor [...]."""

    whole: ClassVar[bool]

    def size(self, shape: tuple[int, ...], itemsize: int) -> int: ...

    def decoded(self, t: Tensor, draws: torch.Generator) -> Tensor: ...


@dataclass(frozen=True)
class TruncatedSVD:
    """The q largest singular values of each matrix [m, n] and their vectors, q (m + n + 1) numbers in all.

    q = floor(ratio m n / (m + n + 1)), at least 1, as published with arXiv 2510.27403. It is the best approximation of
    that rank (Eckart-Young), and a contraction: ||t - decoded||^2 <= (1 - q / min(m, n)) ||t||^2. The matrices are
    those of `fedmuon.optim.routing.matrix_view`; vectors travel as they are.
    """

    whole: ClassVar[bool] = False
    ratio: float

    def rank(self, rows: int, cols: int) -> int:
        return max(1, int(self.ratio * rows * cols / (rows + cols + 1)))

    def size(self, shape: tuple[int, ...], itemsize: int) -> int:
        if len(shape) < 2:
            return prod(shape) * itemsize
        *stack, rows, cols = matrix_view(shape)
        return prod(stack) * self.rank(rows, cols) * (rows + cols + 1) * itemsize

    def decoded(self, t: Tensor, draws: torch.Generator) -> Tensor:
        view = matrix_view(tuple(t.shape))
        q = self.rank(*view[-2:])
        matrices = t.reshape(view)
        if t.dtype not in (torch.float32, torch.float64):
            matrices = matrices.float()
        u, s, vh = torch.linalg.svd(matrices, full_matrices=False)
        return ((u[..., :q] * s[..., None, :q]) @ vh[..., :q, :]).to(t.dtype).reshape(t.shape)


@dataclass(frozen=True)
class TopK:
    """The k = floor(share n), at least 1, largest of n numbers by magnitude, each with an index of 4 bytes.

    A contraction: ||t - decoded||^2 <= (1 - k / n) ||t||^2 (arXiv 1809.07599).
    """

    whole: ClassVar[bool] = False
    share: float

    def count(self, numbers: int) -> int:
        return min(numbers, max(1, int(self.share * numbers)))

    def size(self, shape: tuple[int, ...], itemsize: int) -> int:
        return self.count(prod(shape)) * (itemsize + 4)

    def decoded(self, t: Tensor, draws: torch.Generator) -> Tensor:
        flat = t.reshape(-1)
        chosen = flat.abs().topk(self.count(len(flat)), sorted=False).indices
        return torch.zeros_like(flat).index_copy_(0, chosen, flat[chosen]).reshape(t.shape)


@dataclass(frozen=True)
class Quantize:
    """8 bits a number: a sign and the levels 0..127 of the tensor's largest magnitude s, which travels beside them.

    |t| 127 / s is rounded up with a probability of its fraction, so that the mean of decoded is t (arXiv 1610.02132);
    the variance of each number is at most (s / 127)^2 / 4.
    """

    whole: ClassVar[bool] = True
    levels: ClassVar[int] = 127

    def size(self, shape: tuple[int, ...], itemsize: int) -> int:
        return prod(shape) + itemsize

    def decoded(self, t: Tensor, draws: torch.Generator) -> Tensor:
        scale = t.abs().amax()
        level = t.abs() / torch.where(scale == 0, 1, scale) * self.levels
        down = level.floor()
        up = torch.rand(t.shape, generator=draws, dtype=t.dtype, device=t.device) < level - down
        return (down + up) / self.levels * scale * t.sign()


@dataclass(frozen=True)
class BFloat16:
    """bfloat16, 2 bytes a number, rounded to nearest: a relative error of at most 2^-8 each."""

    whole: ClassVar[bool] = True

    def size(self, shape: tuple[int, ...], itemsize: int) -> int:
        return 2 * prod(shape)

    def decoded(self, t: Tensor, draws: torch.Generator) -> Tensor:
        return t.bfloat16().to(t.dtype)


def code_of(link: Link) -> Code | None:
    """The code that `compression.up` or `compression.down` names; None where nothing is compressed."""
    codes: dict[str, Code] = {
        "svd": TruncatedSVD(link.ratio),
        "topk": TopK(link.share),
        "quantize": Quantize(),
        "bf16": BFloat16(),
    }
    return codes.get(link.method)
