"""The local steps of a stack of clients as parts of equal batch size, on the device at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

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
    pieces: list[Any] = []
    rows_of: list[list[tuple[int, ...]]] = []
    shapes: list[tuple[int, int]] = []
    for number in range(max(map(len, batches), default=0)):
        by_size: dict[int, list[int]] = {}
        for row, own in enumerate(batches):
            if number < len(own):
                by_size.setdefault(len(own[number]), []).append(row)
        step = -number if before else number + 1
        rows_of.append([tuple(rows) for _, rows in sorted(by_size.items())])
        for rows in rows_of[-1]:
            shapes.append((len(rows), 2 + len(batches[rows[0]][number])))
            for row in rows:
                pieces += (row, keyed.of_step(seeds[row], step)), batches[row][number]
    on_device = iter(_uploaded(pieces, shapes, device))
    return [[Part(rows, next(on_device)) for rows in of_step] for of_step in rows_of]


def _uploaded(pieces: Sequence[Any], shapes: Sequence[tuple[int, int]], device: torch.device) -> list[Tensor]:
    """Tensors of these shapes on the device from consecutive numbers, in one transfer that nothing waits for."""
    if not pieces:
        return []
    flat = torch.from_numpy(np.concatenate(pieces, dtype=np.int64))
    if device.type == "cuda":
        flat = flat.pin_memory()
    places = flat.to(device, non_blocking=True).split([rows * columns for rows, columns in shapes])
    return [place.view(shape) for place, shape in zip(places, shapes, strict=True)]
