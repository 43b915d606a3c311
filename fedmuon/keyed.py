"""Random numbers as a hash of what they are for: client, local step, sample. The same whatever runs beside them.

torch's generators are drawn from in the order of the calls, which a stack of clients, a chunk or a CUDA graph changes.
Keys are int32 tensors; every function works element by element on any device, under vmap and in a captured graph.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

_ODD = (-1640531535, -2048144789, -1028477387)  # 2654435761 (Knuth), 0x85EBCA6B and 0xC2B2AE35 (murmur3) as int32


def of_step(seed: int, step: int) -> int:
    """The key of one client's local step, an int32: a hash of the client's seed and the step (any whole number)."""
    mixed = (seed ^ (step * 0x9E3779B97F4A7C15)) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    return ((mixed ^ (mixed >> 27)) & 0xFFFFFFFF) - 2**31


def of_samples(keys: Tensor, count: int) -> Tensor:
    """The keys of the samples of batches, [...] -> [..., count]: hashes of the step's key and the position."""
    return _bits(keys, "sample", (count,))


def uniform(keys: Tensor, purpose: str, shape: Sequence[int] = ()) -> Tensor:
    """Numbers in [0, 1), float32 [*keys.shape, *shape], independent for every key, purpose and element."""
    return (_bits(keys, purpose, shape) & 0xFFFFFF).to(torch.float32) * 2.0**-24


def integers(keys: Tensor, purpose: str, high: int, shape: Sequence[int] = ()) -> Tensor:
    """Whole numbers 0 ... high - 1, int64 [*keys.shape, *shape]."""
    return ((_bits(keys, purpose, shape) & 0xFFFFFF).long() * high) >> 24


def normal(keys: Tensor, purpose: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Standard normal numbers [*keys.shape, *shape], at most 5.9 in size (Box-Muller on 24 bits)."""
    radius, angle = uniform(keys, purpose, (2, *shape)).to(dtype).unbind(keys.ndim)
    return (-2 * (radius + 2.0**-25).log()).sqrt() * (2 * math.pi * angle).cos()


def _bits(keys: Tensor, purpose: str, shape: Sequence[int]) -> Tensor:
    own = _mixed(keys + (zlib.crc32(purpose.encode()) - 2**31))  # a stream of its own for every key and purpose
    index = torch.arange(math.prod(shape), dtype=torch.int32, device=keys.device).view(tuple(shape))
    return _mixed(index * _ODD[0] + own.view(*own.shape, *[1] * len(shape)))


def _mixed(h: Tensor) -> Tensor:
    """murmur3's finalizer; int32 arithmetic wraps around, and the masks make its shifts logical."""
    for shift, mask, odd in ((16, 0xFFFF, _ODD[1]), (13, 0x7FFFF, _ODD[2])):
        h = (h ^ ((h >> shift) & mask)) * odd
    return h ^ ((h >> 16) & 0xFFFF)
