"""The random generators of a process that a task may draw from by itself: torch's, NumPy's and Python's own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def states(device: torch.device) -> tuple[Any, ...]:
    """Equal (==) to what it was before unless something drew in between."""
    _, words, position, *rest = np.random.get_state()
    of_torch = [generator.get_state().numpy().tobytes() for generator in _of_torch(device)]
    return random.getstate(), np.asarray(words).tobytes(), position, *rest, *of_torch


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """All of them start from the seed; afterwards they are what they were."""
    before = random.getstate(), np.random.get_state(), [generator.get_state() for generator in _of_torch(device)]
    try:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        for generator in _of_torch(device):  # torch.manual_seed would format a stack trace for devices not in use
            generator.manual_seed(seed)
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        for generator, state in zip(_of_torch(device), before[2], strict=True):
            generator.set_state(state)


def _of_torch(device: torch.device) -> list[torch.Generator]:
    on_device = [torch.cuda.default_generators[device.index or 0]] if device.type == "cuda" else []
    return [torch.default_generator, *on_device]
