"""Dropout whose masks are a function of (client seed, local step, layer, element): the same on every engine.

torch's own dropout draws from one generator, which a stack of clients would share. Here a mask is a hash, so clients
keep their own random numbers when they run side by side under `torch.func.vmap`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_ODD = (-1640531535, -2048144789, -1028477387)  # 2654435761 (Knuth), 0x85EBCA6B and 0xC2B2AE35 (murmur3) as int32


class Key:
    """The key of the masks that are drawn next; one object for all layers of a task."""

    def __init__(self) -> None:
        self.value, self.layer = torch.zeros((), dtype=torch.int32), 0

    def set(self, value: Tensor) -> None:
        """Begin a forward pass. `value`: int32, 0-d (a vmapped [C] for a stack), from `of_step`."""
        self.value, self.layer = value, 0

    def uniform(self, like: Tensor) -> Tensor:
        """Numbers in [0, 1), of the shape of `like`, different for every key, layer and element."""
        self.layer += 1
        index = torch.arange(like.numel(), dtype=torch.int32, device=like.device).view(like.shape)
        h = (index + self.layer * 40503) * _ODD[0] + self.value.to(like.device)
        for shift, mask, odd in ((16, 0xFFFF, _ODD[1]), (13, 0x7FFFF, _ODD[2])):
            h = (h ^ ((h >> shift) & mask)) * odd
        h = h ^ ((h >> 16) & 0xFFFF)
        return (h & 0xFFFFFF).to(torch.float32) * 2.0**-24


def of_step(seed: int, step: int) -> int:
    """The key of one client's local step, an int32: a hash of the client's seed and the step."""
    mixed = (seed ^ (step * 0x9E3779B97F4A7C15)) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    return ((mixed ^ (mixed >> 27)) & 0xFFFFFFFF) - 2**31


class Dropout(nn.Dropout):
    """nn.Dropout with keyed masks."""

    key: Key

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        keep = (self.key.uniform(x) >= self.p).to(x.dtype)
        return x * keep / (1 - self.p) if self.p < 1 else x * 0


def install(task: nn.Module) -> Key:
    """Give every nn.Dropout of a task keyed masks (in place, attributes kept); returns their key."""
    key = Key()
    for module in task.modules():
        if type(module) is nn.Dropout or type(module) is Dropout:
            module.__class__ = Dropout
            module.key = key  # type: ignore[assignment]
    return key
