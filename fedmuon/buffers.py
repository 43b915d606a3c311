"""A module's buffers in a round: what clients start from, and the means of what comes back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

Flat = dict[torch.dtype, tuple[Tensor, Tensor]]


class Buffers:
    """`start`: the buffers as clients receive them, by name, [...]; `module`: the module's own, set by `finish`.

    A number that a client leaves as it was is no change. It may be infinite, as in a mask, and where no client changes
    it, it stays what it is: sum p_i c is not c in floating point. The mean of whole numbers is rounded. Sums are kept
    in one flat tensor for each dtype, since models have dozens of buffers, most of them small.
    """

    def __init__(self, module: Mapping[str, Tensor]) -> None:
        self.module = module
        self.start = {name: b.clone() for name, b in module.items()}
        self._names: dict[torch.dtype, list[str]] = {}
        for name, b in module.items():
            self._names.setdefault(b.dtype, []).append(name)

    def start_round(self) -> None:
        """Take the module's buffers as what clients start from; clear the sums."""
        for name, b in self.module.items():
            self.start[name].copy_(b)
        self._before = {dtype: self._joined(self.start, dtype) for dtype in self._names}
        self._sums = {dtype: torch.zeros_like(b, dtype=_sum_dtype(b)) for dtype, b in self._before.items()}
        self._same = {dtype: torch.ones_like(b, dtype=torch.bool) for dtype, b in self._before.items()}

    def flat(self, buffers: Mapping[str, Tensor]) -> Flat:
        """A client's buffers, [numbers] of each dtype, and which of the numbers are what they were."""
        joined = {dtype: self._joined(buffers, dtype) for dtype in self._names}
        return {d: (b, torch.isclose(b, self._before[d], rtol=0, atol=0, equal_nan=True)) for d, b in joined.items()}

    def changes(self, flat: Flat) -> list[Tensor]:
        """The changed numbers that may not be finite, 0 for the others."""
        inexact = [one for dtype, one in flat.items() if dtype.is_floating_point or dtype.is_complex]
        return [b.masked_fill(same, 0) for b, same in inexact]

    def add(self, flat: Flat, weight: float) -> None:
        """Add a client's buffers with its weight p_i."""
        for dtype, (b, same) in flat.items():
            self._sums[dtype].add_(b, alpha=weight)
            self._same[dtype].logical_and_(same)

    def finish(self, mass: float) -> None:
        """Set the module's buffers to the means, the sums divided by `mass`."""
        for dtype, names in self._names.items():
            mean = self._sums[dtype] / mass
            mean = mean if dtype.is_floating_point or dtype.is_complex else mean.round()
            b = torch.where(self._same[dtype], self._before[dtype], mean.to(dtype))
            for name, part in zip(names, b.split([self.start[name].numel() for name in names]), strict=True):
                self.module[name].copy_(part.view_as(self.start[name]))

    def _joined(self, buffers: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        return torch.cat([buffers[name].reshape(-1) for name in self._names[dtype]])


def _sum_dtype(b: Tensor) -> torch.dtype:
    exact = torch.float32 if b.device.type == "mps" else torch.float64
    return b.dtype if b.is_floating_point() or b.is_complex() else exact
