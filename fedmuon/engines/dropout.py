"""Dropout whose masks are a function of (client seed, local step, layer, element): the same on every engine."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedmuon import keyed


class Key:
    """The key of the masks that are drawn next; one object for all layers of a task."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """The value may be one of vmap's, which is of no use outside."""
        self.value, self.layer = torch.zeros((), dtype=torch.int32), 0

    def set(self, value: Tensor) -> None:
        """Begin a forward pass. `value`: int32, 0-d (a vmapped [C] for a stack), from `keyed.of_step`."""
        self.value, self.layer = value, 0

    def uniform(self, like: Tensor) -> Tensor:
        """Numbers in [0, 1), of the shape of `like`, different for every key, layer and element."""
        self.layer += 1
        return keyed.uniform(self.value.to(like.device), f"dropout {self.layer}", like.shape)


class Dropout(nn.Dropout):
    """nn.Dropout with keyed masks."""

    key: Key

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if self.p == 1:
            return x * 0
        return x * ((self.key.uniform(x) >= self.p).to(x.dtype) / (1 - self.p))


def uninstall(task: nn.Module) -> None:
    """Undo `install`: the dropout is torch's again."""
    for module in task.modules():
        if type(module) is Dropout:
            del module.key
            module.__class__ = nn.Dropout  # type: ignore[assignment]


def install(task: nn.Module) -> Key:
    """Give every nn.Dropout of a task keyed masks (in place, attributes kept); returns their key."""
    key = Key()
    for module in task.modules():
        if type(module) is nn.Dropout or type(module) is Dropout:
            module.__class__ = Dropout
            module.key = key  # type: ignore[assignment]
    return key
