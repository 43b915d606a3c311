"""What an engine is given and what it gives back; engines differ only in how gradients are obtained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from torch import Tensor

Tensors = dict[str, Tensor]
State = dict[str, Tensors]  # slot -> parameter -> tensor


@dataclass(frozen=True)
class Assignment:
    """One client's work in one round.

    batches  sample indices of every local step      samples  all of the client's sample indices
    seed     of its random numbers in this round     kept     slots it kept from its last round, [...]; empty at first
    features what shifts its images (`fedmuon.data.feature_shift`); empty for none
    """

    client: int
    batches: list[np.ndarray]
    samples: np.ndarray
    seed: int
    kept: State = field(default_factory=dict)
    features: tuple[float, ...] = ()


@dataclass(frozen=True)
class Broadcast:
    """What the server sends to every client of a round: states by name ("x", "delta_g", ...), and the buffers, [...].

    factor: of every base rate in this round;  t: local steps of all rounds before, a 0-d tensor within a graph.
    """

    states: State
    buffers: Tensors
    factor: float
    t: int | Tensor


@dataclass
class Message:
    """What a client sends back. Its tensors may be the engine's own memory: read them before the next message.

    x, buffers: by name, [...];  sent, kept: slots, e.g. {"momentum": {name: [...]}}; `kept` stays with the client;
    metrics: means over the local steps, "loss" among them;  seconds: of local training;
    errors: what compression has left out so far, by state; it stays with the client as `kept` does.
    """

    client: int
    steps: int
    x: Tensors
    sent: State
    kept: State
    buffers: Tensors
    metrics: dict[str, float]
    seconds: float
    errors: State = field(default_factory=dict)


class Engine(Protocol):
    """Runs clients from what the server sends and yields their messages in the order of the assignments.

    quiet: in the last `train` nothing of the task's Python ran, and nothing drew random numbers.
    """

    quiet: bool

    def train(self, work: Sequence[Assignment], broadcast: Broadcast) -> Iterator[Message]: ...
