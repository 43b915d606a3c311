"""The reference engine: one client after the other in one resident model. It runs any model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedmuon.client import Client
from fedmuon.engines.engine import Assignment, Broadcast, Message
from fedmuon.engines.trace import Traced


class Sequential:
    """Every client trains in the task's own module, a stack of one; results do not depend on the size of a chunk.

    traced: repeats the operators of the rule's steps; engines on several threads share it.
    """

    quiet = False

    def __init__(self, client: Client, traced: Traced | None = None) -> None:
        self.client, self.traced = client, traced

    def train(self, work: Sequence[Assignment], broadcast: Broadcast) -> Iterator[Message]:
        """Yield the message of each client; its tensors are valid until the next one is asked for."""
        for one in work:
            yield self.client.train_round(one, broadcast, self.traced)
