"""Images channels last in memory, [B, h, w, c] seen as [B, c, h, w]: on a CPU pooling and norms are vectorised so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_POOLS = (nn.MaxPool2d, nn.AvgPool2d)


@contextmanager
def channels_last(task: nn.Module) -> Iterator[None]:
    """Convolutions of the task are given their images so, and hand them on so; parameters stay as they are.

    For networks that take strides as they come: `view` after a convolution does not.
    """
    hooks = [m.register_forward_pre_hook(_given_last) for m in task.modules() if isinstance(m, nn.Conv2d)]
    hooks += [m.register_forward_hook(_returned_last) for m in task.modules() if isinstance(m, _POOLS)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _is_last(images: Tensor) -> bool:
    return images.shape[1] > 1 and images.is_contiguous(memory_format=torch.channels_last)


def _returned_last(module: nn.Module, given: tuple[Any, ...], images: Any) -> None:
    """A linear layer behind the pooling hands back a gradient with channels first, which pooling is slow with."""
    if isinstance(images, Tensor) and images.ndim == 4 and images.requires_grad and _is_last(images):
        images.register_hook(lambda g: g.contiguous(memory_format=torch.channels_last))


def _given_last(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
    if not given or given[0].ndim != 4 or _is_last(given[0]):
        return None
    images: Tensor = given[0]
    # a copy, since with one channel every layout is "contiguous", and torch would take it for channels first
    return (torch.empty_like(images, memory_format=torch.channels_last).copy_(images), *given[1:])
