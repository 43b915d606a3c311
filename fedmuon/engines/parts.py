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


@dataclass(frozen=True)
class Run:
    """Consecutive local steps that consist of the same parts.

    first   number of the first step, from 0      steps    how many there are
    rows    of every part                         numbers  those of every part, int64 [steps, rows, 2 + size]
    """

    first: int
    steps: int
    rows: tuple[tuple[int, ...], ...]
    numbers: tuple[Tensor, ...]

    @property
    def size(self) -> int:
        """Of the batches of its first part."""
        return self.numbers[0].shape[2] - 2

    @property
    def active(self) -> int:
        """How many clients take these steps."""
        return sum(map(len, self.rows))

    def __iter__(self) -> Any:
        """The parts of each step."""
        for step in range(self.steps):
            yield [Part(rows, numbers[step]) for rows, numbers in zip(self.rows, self.numbers, strict=True)]


def runs(
    batches: Sequence[Sequence[np.ndarray]], seeds: Sequence[int], device: torch.device, before: bool = False
) -> list[Run]:
    """The steps of a round, of each the small batches first. batches: of every row, its steps' sample indices.

    `before`: these are the parts of the full gradient, whose random numbers are those of steps 0, -1, ...
    """
    alike: list[tuple[list[tuple[int, tuple[int, ...]]], list[int]]] = []  # batch sizes with their rows, and the steps
    for number in range(max(map(len, batches), default=0)):
        by_size: dict[int, list[int]] = {}
        for row, own in enumerate(batches):
            if number < len(own):
                by_size.setdefault(len(own[number]), []).append(row)
        composed = [(size, tuple(rows)) for size, rows in sorted(by_size.items())]
        if alike and alike[-1][0] == composed:
            alike[-1][1].append(number)
        else:
            alike.append((composed, [number]))
    pieces = [
        piece
        for composed, numbers in alike
        for _, rows in composed
        for number in numbers
        for row in rows
        for piece in ((row, keyed.of_step(seeds[row], -number if before else number + 1)), batches[row][number])
    ]
    shapes = [(len(numbers), len(rows), 2 + size) for composed, numbers in alike for size, rows in composed]
    on_device = iter(_uploaded(pieces, shapes, device))
    return [
        Run(numbers[0], len(numbers), tuple(rows for _, rows in composed), tuple(next(on_device) for _ in composed))
        for composed, numbers in alike
    ]


def _uploaded(pieces: Sequence[Any], shapes: Sequence[tuple[int, ...]], device: torch.device) -> list[Tensor]:
    """Tensors of these shapes on the device from consecutive numbers, in one transfer that nothing waits for."""
    if not pieces:
        return []
    flat = torch.from_numpy(np.concatenate(pieces, dtype=np.int64))
    if device.type == "cuda":
        flat = flat.pin_memory()
    places = flat.to(device, non_blocking=True).split([int(np.prod(shape)) for shape in shapes])
    return [place.view(shape) for place, shape in zip(places, shapes, strict=True)]
