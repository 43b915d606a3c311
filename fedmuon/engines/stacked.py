"""Clients side by side: gradients of a whole stack at once, by torch.func over stacked parameters and buffers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter

import torch

from fedmuon.client import Client
from fedmuon.engines.cohort import Cohort
from fedmuon.engines.engine import Assignment, Broadcast, Message, Tensors
from fedmuon.engines.generators import states
from fedmuon.engines.parts import Part, parts
from fedmuon.engines.trace import Traced
from fedmuon.engines.ways import Loss, Unsupported, Way, repeated, stacked


class Stacked:
    """All clients of a chunk take their local steps together; see `Cohort`.

    `traced` repeats the operators of steps whose shapes come again; engines on several threads share it.
    """

    def __init__(self, client: Client, traced: Traced | None = None) -> None:
        self.client, self.loss, self.traced = client, Loss(client), traced or Traced("none")
        self._largest: Cohort | None = None

    def train(self, work: Sequence[Assignment], broadcast: Broadcast) -> Iterator[Message]:
        """Yield the messages in the order of `work`. Raises `Unsupported` before the first of them."""
        if not work:
            return
        started = perf_counter()
        rows = sorted(work, key=lambda one: -len(one.batches))
        cohort = self._cohort(len(rows))
        cohort.start(broadcast, rows)
        untouched = states(self.client.device) if self.client.alone else ()
        with torch.autocast(self.client.device.type, enabled=False):
            if cohort.stack.algorithm.full_gradient:
                self._full_gradients(cohort, rows)
            steps = parts([one.batches for one in rows], [one.seed for one in rows], self.client.device)
            for number, step in enumerate(steps):
                active = sum(len(part.rows) for part in step)
                cohort.stack.step(self._gradients(cohort, step, number, active), number + 1, active, self.traced)
        if untouched and states(self.client.device) != untouched:
            raise Unsupported("it draws from a random generator of the process, which clients would share")
        cohort.stack.end([len(one.batches) for one in rows])
        self.client.meanwhile()
        yield from cohort.messages(work, rows, started)

    def _cohort(self, size: int) -> Cohort:
        """Memory for so many clients, made once for the most there have been."""
        if self._largest is None or self._largest.size < size:
            self._largest = None  # gives the old memory back before the new is taken
            self._largest = Cohort(self.client, size)
        return self._largest.first(size)

    def _way(self, part: Part) -> Way:
        way = stacked(self.loss, part.size)
        return repeated(way, self.client, part.size, self.traced) if self.client.repeats else way

    def _gradients(self, cohort: Cohort, step: list[Part], number: int, active: int) -> Tensors:
        """Gradients of the first `active` clients, [active, ...]."""
        found = [cohort.gradients(part, self._way(part), number) for part in step]
        if len(step) == 1:
            return found[0]
        gradients = {name: t.new_empty((active, *t.shape[1:])) for name, t in cohort.stack.x.items()}
        for part, own in zip(step, found, strict=True):
            for name, g in own.items():
                gradients[name][part.where] = g
        return gradients

    def _full_gradients(self, cohort: Cohort, rows: Sequence[Assignment]) -> None:
        """Fill the slot "gradient" as a client alone does; buffers stay as they are."""
        before = {name: b.clone() for name, b in cohort.buffers.items()}
        for step in cohort.full_gradient_parts(rows):
            for part in step:
                cohort.add_full_gradient(part, cohort.gradients(part, self._way(part), 0), rows)
        for name, b in cohort.buffers.items():
            b.copy_(before[name])
        cohort.forget()
