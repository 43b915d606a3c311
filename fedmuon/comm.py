"""Sizes of messages. What is sent follows from an algorithm's declaration; no algorithm counts bytes itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor


def payload(message: Iterable[Mapping[str, Tensor]]) -> int:
    """Bytes of the named tensors of a message, each in its own dtype."""
    return sum(t.numel() * t.element_size() for tensors in message for t in tensors.values())
