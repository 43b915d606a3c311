"""The reference engine: one client after the other in one resident model. It runs any model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

from fedmuon.client import Client
from fedmuon.engines.engine import Assignment, Message

Tensors = dict[str, Tensor]


class Sequential:
    """Every client trains in the task's own module, a stack of one; the result does not depend on the size of a chunk."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def train(self, work: Iterable[Assignment], down: dict[str, Tensors], buffers: Tensors) -> Iterator[Message]:
        """Yield the message of each client; its tensors are valid until the next one is asked for."""
        for one in work:
            yield self.client.train_round(one, down, buffers)
