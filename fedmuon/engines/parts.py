"""The local steps of a stack of clients as parts of equal batch size, on the device at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedmuon import keyed


@dataclass(frozen=True)
class Part:
    """The clients of one local step whose batches have one size.

    rows     of the stack, ascending
    numbers  int64 [rows, 2 + size] on the device: row, key of the step's random numbers, sample indices
    """

    rows: tuple[int, ...]
    numbers: Tensor

    @staticmethod
    def of_one(index: np.ndarray, key: int, device: torch.device) -> Part:
        """The part of one client by itself."""
        return Part((0,), torch.from_numpy(np.concatenate(([0, key], index)))[None].to(device))

    @property
    def size(self) -> int:
        return self.numbers.shape[1] - 2

    @cached_property
    def leading(self) -> bool:
        """Whether these are the first rows of the stack, which need no gather."""
        return self.rows == tuple(range(len(self.rows)))

    @property
    def where(self) -> slice | Tensor:
        """What selects the rows from a stack."""
        return slice(0, len(self.rows)) if self.leading else self.numbers[:, 0]

    @property
    def keys(self) -> Tensor:
        return self.numbers[:, 1].to(torch.int32)

    @cached_property
    def index(self) -> Tensor:
        return self.numbers[:, 2:]


def parts(
    batches: Sequence[Sequence[np.ndarray]], seeds: Sequence[int], device: torch.device, before: bool = False
) -> list[list[Part]]:
    """The parts of every step, small batches first. batches: of every row, its steps' sample indices.

    `before`: these are the parts of the full gradient, whose random numbers are those of steps 0, -1, ...
    """
    found: list[list[tuple[tuple[int, ...], np.ndarray]]] = []
    for number in range(max(map(len, batches), default=0)):
        by_size: dict[int, list[int]] = {}
        for row, own in enumerate(batches):
            if number < len(own):
                by_size.setdefault(len(own[number]), []).append(row)
        step = -number if before else number + 1
        found.append([])
        for _, rows in sorted(by_size.items()):
            lines = [np.concatenate(([row, keyed.of_step(seeds[row], step)], batches[row][number])) for row in rows]
            found[-1].append((tuple(rows), np.stack(lines).astype(np.int64)))
    on_device = iter(_uploaded([numbers for step in found for _, numbers in step], device))
    return [[Part(rows, next(on_device)) for rows, _ in step] for step in found]


def _uploaded(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Copies on the device, in one transfer that nothing waits for."""
    if not arrays:
        return []
    flat = torch.from_numpy(np.concatenate([a.ravel() for a in arrays]))
    if device.type == "cuda":
        flat = flat.pin_memory()
    pieces = flat.to(device, non_blocking=True).split([a.size for a in arrays])
    return [piece.view(a.shape) for piece, a in zip(pieces, arrays, strict=True)]
