"""A module's buffers in a round: what clients start from, and the means of what comes back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedmuon.recorder import summing

Flat = dict[torch.dtype, tuple[Tensor, Tensor]]


class Buffers:
    """`start`: the buffers as clients receive them, by name, [...]; `module`: the module's own, set by `finish`.

    A number that a client leaves as it was is no change. It may be infinite, as in a mask, and where no client changes
    it, it stays what it is: sum p_i c is not c in floating point. The mean of whole numbers is rounded. Memory is one
    flat tensor for each dtype, since models have dozens of buffers, most of them small.

    averaged    False: they stay what they are, whatever clients do to theirs
    """

    def __init__(self, module: Mapping[str, Tensor], averaged: bool = True) -> None:
        self.module, self.averaged = module, averaged
        self._names: dict[torch.dtype, list[str]] = {}
        for name, b in module.items():
            self._names.setdefault(b.dtype, []).append(name)
        self._before = self._joined(module)
        self._sums: dict[torch.dtype, Tensor] = {}
        self.start: dict[str, Tensor] = {}
        for dtype, names in self._names.items():
            parts = self._before[dtype].split([module[name].numel() for name in names])
            self.start |= {name: part.view(module[name].shape) for name, part in zip(names, parts, strict=True)}

    def start_round(self) -> None:
        """Take the module's buffers as what clients start from; clear the sums."""
        for dtype, b in self._joined(self.module).items():
            self._before[dtype].copy_(b)
        for dtype, b in self._before.items():
            self._sums[dtype] = torch.zeros_like(b, dtype=dtype if _is_inexact(dtype) else summing(b.device))
        self._same = {dtype: torch.ones_like(b, dtype=torch.bool) for dtype, b in self._before.items()}

    def flat(self, buffers: Mapping[str, Tensor]) -> Flat:
        """A client's buffers, [numbers] of each dtype, and which of the numbers are what they were."""
        joined = self._joined(buffers) if self.averaged else {}
        return {d: (b, torch.isclose(b, self._before[d], rtol=0, atol=0, equal_nan=True)) for d, b in joined.items()}

    def changes(self, flat: Flat) -> list[Tensor]:
        """The changed numbers that may not be finite, 0 for the others."""
        return [b.masked_fill(same, 0) for dtype, (b, same) in flat.items() if _is_inexact(dtype)]

    def add(self, flat: Flat, weight: float) -> None:
        """Add a client's buffers with its weight p_i."""
        for dtype, (b, same) in flat.items():
            self._sums[dtype].add_(b, alpha=weight)
            self._same[dtype].logical_and_(same)

    def finish(self, mass: float) -> None:
        """Set `start` and the module's buffers to the means, the sums divided by `mass`."""
        if self.averaged and self.module:
            for dtype, before in self._before.items():
                mean = self._sums[dtype] / mass
                mean = mean if _is_inexact(dtype) else mean.round()
                before.copy_(torch.where(self._same[dtype], before, mean.to(dtype)))
            torch._foreach_copy_([self.module[name] for name in self.start], list(self.start.values()))

    def _joined(self, buffers: Mapping[str, Tensor]) -> dict[torch.dtype, Tensor]:
        return {dtype: torch.cat([buffers[n].reshape(-1) for n in names]) for dtype, names in self._names.items()}


def _is_inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex
