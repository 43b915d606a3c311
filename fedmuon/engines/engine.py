"""What an engine is given and what it gives back; engines differ only in how gradients are obtained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Assignment:
    """One client's work in one round: the sample indices of every local step, the schedule's factor, the random seed."""

    client: int
    batches: list[np.ndarray]
    factor: float
    seed: int


@dataclass
class Message:
    """What a client sends back. Its tensors may be the engine's own memory: read them before asking for the next message.

    x, buffers: by name, [...];  slots: the algorithm's shared state, e.g. {"momentum": {name: [...]}};
    metrics: means over the local steps, "loss" among them;  seconds: of local training.
    """

    client: int
    steps: int
    x: Tensors
    slots: dict[str, Tensors]
    buffers: Tensors
    metrics: dict[str, float]
    seconds: float


class Engine(Protocol):
    """Runs clients from what the server sends and yields their messages in the order of the assignments."""

    def train(self, work: Iterable[Assignment], down: dict[str, Tensors], buffers: Tensors) -> Iterator[Message]: ...
