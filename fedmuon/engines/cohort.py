"""Memory for a stack of clients, and what their local step computes: for the engines that run clients together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from time import perf_counter

import torch
from torch import Tensor
from torchmetrics import Metric

from fedmuon.client import Client
from fedmuon.data.feature_shift import Shift
from fedmuon.engines.engine import Assignment, Broadcast, Message, State, Tensors
from fedmuon.engines.memory import is_exhausted
from fedmuon.engines.parts import Part, runs
from fedmuon.engines.stack import Stack, unstacked
from fedmuon.engines.ways import Unsupported, Way, reason
from fedmuon.recorder import summing


class Cohort:
    """C clients side by side: parameters and rule states (`stack`), buffers and sums of what they log, all [C, ...].

    Clients with more local steps come first, so that those that still train are always the first rows; a step whose
    batches differ in size is taken part by part. Nothing is padded or masked: what a client computes is what it
    computes alone. One client has the memory of the task itself.
    """

    def __init__(self, client: Client, size: int) -> None:
        self.client, self.size, self.capacity = client, size, size
        own = client.stack
        if size == 1:
            self.stack, self.buffers = own, {name: b[None] for name, b in client.buffers_by_name.items()}
        else:
            x = {name: p.detach().new_zeros((size, *p.shape)) for name, p in client.learned.items()}
            self.stack = Stack(own.algorithm, own.groups, x, own.clip)
            self.buffers = {name: b.new_zeros((size, *b.shape)) for name, b in client.buffers_by_name.items()}
        self.sums: Tensors = {}  # of what is logged: (sum, weight), [C, 2]
        self.shift: Shift | None = None
        self._first: dict[int, Cohort] = {}
        self._rows: dict[int, tuple[Tensors, State, State, Tensors]] = {}  # views of what messages hold
        self._metrics = [module for module in client.task.modules() if isinstance(module, Metric)]

    def first(self, size: int) -> Cohort:
        """The first rows, in the same memory; made once a round."""
        if size == self.size:
            return self
        if size not in self._first:
            part = self._first[size] = copy(self)
            part.size, part.stack, part._first = size, self.stack.first(size), {}
            part.buffers = unstacked(self.buffers, slice(0, size))
            part.shift = None if self.shift is None else self.shift.rows(slice(0, size))
        return self._first[size]

    def tensors(self) -> list[Tensor]:
        """All that a local step of this round reads and writes beside its numbers."""
        columns = () if self.shift is None else self.shift.columns
        return [*self.buffers.values(), *self.sums.values(), *columns, *self.stack.tensors()]

    def around(self, tensors: Iterator[Tensor]) -> Cohort:
        """The same with other tensors, in the order of `tensors()`."""
        other = copy(self)
        other.buffers = {name: next(tensors) for name in self.buffers}
        other.sums = {name: next(tensors) for name in self.sums}
        other.shift = None if self.shift is None else self.shift.around(tensors)
        other.stack = self.stack.around(tensors)
        return other

    @torch.no_grad()
    def start(self, broadcast: Broadcast, rows: Sequence[Assignment]) -> None:
        """Begin a round with these clients, those with most steps first."""
        self._first = {}
        self.stack.start(broadcast, rows)
        if self.buffers:
            torch._foreach_copy_(list(self.buffers.values()), [broadcast.buffers[name] for name in self.buffers])
        self.forget()
        self.shift = Shift.of([one.features for one in rows], self.client.device)

    def forget(self) -> None:
        """Drop what was logged."""
        if self.sums:
            torch._foreach_zero_(list(self.sums.values()))

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """What is done to buffers and sums is undone; sums that are new become zero."""
        buffers = {name: b.clone() for name, b in self.buffers.items()}
        sums = {name: total.clone() for name, total in self.sums.items()}
        try:
            yield
        finally:
            for name, b in self.buffers.items():
                b.copy_(buffers[name])
            for name, total in self.sums.items():
                total.copy_(sums[name]) if name in sums else total.zero_()

    def gradients(self, part: Part, way: Way, batch_idx: int | Tensor, into: Tensors | None = None) -> Tensors:
        """Gradients of a part's clients, [rows, ...], in `into` where it is given; buffers and sums change in place.

        Raises `Unsupported` for a task that cannot be computed in this way.
        """
        client, first = self.client, self.first(len(part.rows)) if part.leading else None
        x, buffers = (first.stack.x, first.buffers) if first else self._gathered(part.numbers[:, 0])
        try:
            with client.computing(), client.single(part.size):
                shift = None if self.shift is None else self.shift.rows(part.where)
                gradients, logged = way(x, buffers, part, shift, batch_idx, into)
        except Exception as error:
            self._metrics_were_used()
            if is_exhausted(error):
                raise
            raise Unsupported(reason(error)) from error
        if self._metrics_were_used():
            raise Unsupported("training_step updates a torchmetrics Metric, whose state clients would share")
        with torch.no_grad():
            if not part.leading:
                for name, b in buffers.items():
                    self.buffers[name].index_copy_(0, part.numbers[:, 0], b)
            for name, value in logged.items():
                if name not in self.sums:
                    self.sums[name] = value.new_zeros(self.capacity, 2, dtype=summing(value.device))
                if part.leading:
                    self.sums[name][: len(part.rows)].add_(value)
                else:
                    self.sums[name].index_add_(0, part.numbers[:, 0], value.to(self.sums[name].dtype))
        return gradients

    def _metrics_were_used(self) -> bool:
        """Whether one was; its state may be of vmap's tensors, which are of no use outside, and is dropped."""
        used = [metric for metric in self._metrics if metric.update_called]
        for metric in used:
            metric.reset()
        return bool(used)

    def _gathered(self, rows: Tensor) -> tuple[Tensors, Tensors]:
        return unstacked(self.stack.x, rows), unstacked(self.buffers, rows)

    def messages(self, work: Sequence[Assignment], rows: Sequence[Assignment], started: float) -> Iterator[Message]:
        """The messages in the order of `work`; `rows` is the order of the stack. Waits for the device."""
        logged = {name: total.tolist() for name, total in self.sums.items()}
        seconds = (perf_counter() - started) / len(rows)
        place = {one.client: row for row, one in enumerate(rows)}
        for one in work:
            row = place[one.client]
            x, sent, kept, buffers = self._row(row)
            yield Message(
                client=one.client,
                steps=len(one.batches),
                x=x,
                sent=sent,
                kept=kept,
                buffers=buffers,
                metrics={name: total[row][0] / total[row][1] for name, total in logged.items() if total[row][1]},
                seconds=seconds,
            )

    def _row(self, row: int) -> tuple[Tensors, State, State, Tensors]:
        """One client's parameters, slots that are sent and kept, and buffers: views, made once."""
        if row not in self._rows:
            stack, algorithm = self.stack, self.stack.algorithm
            slots = stack.of_client(algorithm.sent, row), stack.of_client(algorithm.kept, row)
            self._rows[row] = unstacked(stack.x, row), *slots, unstacked(self.buffers, row)
        return self._rows[row]

    def full_gradient_parts(self, rows: Sequence[Assignment]) -> Iterator[Part]:
        """All samples of every client, in batches of the size of its first."""
        chunks = [
            [one.samples[s : s + len(one.batches[0])] for s in range(0, len(one.samples), len(one.batches[0]))]
            for one in rows
        ]
        for run in runs(chunks, [one.seed for one in rows], self.client.device, before=True):
            for step in run:
                yield from step

    @torch.no_grad()
    def add_full_gradient(self, part: Part, gradients: Tensors, rows: Sequence[Assignment]) -> None:
        """Add a part's share to the slot "gradient", from its gradients [rows, ...]."""
        share = [part.size / len(rows[row].samples) for row in part.rows]
        for name, g in gradients.items():
            slot = self.stack.state["gradient"][name]
            for position, row in enumerate(part.rows):
                slot[row].add_(g[position], alpha=share[position])
