"""Clients side by side: gradients of a whole stack at once, by torch.func over stacked parameters and buffers."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.utils._pytree import tree_map
from torchmetrics import Metric

from fedmuon.client import Client, loss_in
from fedmuon.data.feature_shift import Shift
from fedmuon.engines.engine import Assignment, Broadcast, Message, Tensors
from fedmuon.engines.stack import Stack, unstacked


class Unsupported(RuntimeError):
    """The task cannot run as a stack; the message says why, and where in its code."""


class Stacked:
    """All clients of a chunk take their local steps together.

    Clients with more local steps come first in the stack, so that those that still train are always its first rows; a
    step whose batches differ in size is taken size by size. Nothing is padded or masked: what a client computes is what
    it computes alone. Random numbers are each client's own.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self._forward = _TrainingStep(client.task)
        self._stacks: dict[int, tuple[Stack, Tensors]] = {}

    def train(self, work: Sequence[Assignment], broadcast: Broadcast) -> Iterator[Message]:
        """Yield the messages in the order of `work`. Raises `Unsupported` before the first of them."""
        if not work:
            return
        started = perf_counter()
        rows = sorted(work, key=lambda one: -len(one.batches))
        stack, buffers = self._stack(len(rows))
        stack.start(broadcast, rows)
        for name, b in buffers.items():
            b.copy_(broadcast.buffers[name])
        device = self.client.device
        sums: dict[str, Tensor] = {}
        batches = _Batches(self.client, rows)
        with torch.autocast(device.type, enabled=False):
            if stack.algorithm.full_gradient:
                self._full_gradients(stack, buffers, batches, rows)
            for k in range(1, len(rows[0].batches) + 1):
                active = sum(len(one.batches) >= k for one in rows)
                indices = [one.batches[k - 1] for one in rows[:active]]
                gradients, logged = self._gradients(stack.x, buffers, batches, indices, k)
                stack.step(gradients, k, active)
                for name, value in logged.items():
                    sums.setdefault(name, value.new_zeros(len(rows), 2))[:active] += value
        stack.end([len(one.batches) for one in rows])
        seconds = (perf_counter() - started) / len(rows)
        means = {name: (total[:, 0] / total[:, 1]).tolist() for name, total in sums.items()}
        place = {one.client: row for row, one in enumerate(rows)}
        for one in work:
            row, steps = place[one.client], len(one.batches)
            yield Message(
                client=one.client,
                steps=steps,
                x=unstacked(stack.x, row),
                sent=stack.of_client(stack.algorithm.sent, row),
                kept=stack.of_client(stack.algorithm.kept, row),
                buffers=unstacked(buffers, row),
                metrics={name: mean[row] for name, mean in means.items()},
                seconds=seconds,
            )

    def _stack(self, size: int) -> tuple[Stack, Tensors]:
        """Memory for so many clients, made once."""
        if size not in self._stacks:
            client, own = self.client, self.client.stack
            x = {name: p.detach().new_zeros((size, *p.shape)) for name, p in client.learned.items()}
            buffers = {name: b.new_zeros((size, *b.shape)) for name, b in client.buffers_by_name.items()}
            self._stacks[size] = Stack(own.algorithm, own.groups, x, own.clip), buffers
        return self._stacks[size]

    def _gradients(
        self, x: Tensors, buffers: Tensors, batches: _Batches, indices: list[np.ndarray], k: int
    ) -> tuple[Tensors, Tensors]:
        """Gradients and logged values of the first len(indices) clients, [active, ...]; buffers change in place."""
        active, sizes = len(indices), sorted({len(index) for index in indices})
        if len(sizes) == 1:
            rows: list[int] | slice = slice(0, active)
            return self._of_rows(rows, x, buffers, batches, indices, k)
        gradients = {name: t.new_zeros((active, *t.shape[1:])) for name, t in x.items()}
        logged: Tensors = {}
        for size in sizes:
            rows = [row for row, index in enumerate(indices) if len(index) == size]
            g, values = self._of_rows(rows, x, buffers, batches, [indices[row] for row in rows], k)
            for name, t in g.items():
                gradients[name][rows] = t
            for name, t in values.items():
                logged.setdefault(name, t.new_zeros(active, 2))[rows] = t
        return gradients, logged

    def _of_rows(
        self,
        rows: list[int] | slice,
        x: Tensors,
        buffers: Tensors,
        batches: _Batches,
        indices: list[np.ndarray],
        k: int,
    ) -> tuple[Tensors, Tensors]:
        """The same for clients whose batches have one size."""
        client, size, number = self.client, len(indices[0]), max(0, k - 1)
        x_rows, b_rows = ({name: t[rows] for name, t in tensors.items()} for tensors in (x, buffers))

        def loss_of(x: Tensors, buffers: Tensors, batch: Any, key: Tensor) -> tuple[Tensor, Tensors]:
            client.key.set(key)
            client.recorder.reset(size)
            result = functional_call(self._forward, _prefixed(x) | _prefixed(buffers), (batch, number))
            loss = loss_in(result)
            return loss, {**client.recorder.take(), "loss": torch.stack([loss.detach(), torch.ones_like(loss)])}

        try:
            with client.trainer.precision_plugin.train_step_context(), client.single(size):
                batch, keys = batches.of(rows, indices, k)
                together = vmap(grad_and_value(loss_of, has_aux=True), randomness="error")
                gradients, (_, logged) = together(x_rows, b_rows, batch, keys)
        except Exception as error:
            raise Unsupported(_reason(error)) from error
        if any(metric.update_called for metric in client.task.modules() if isinstance(metric, Metric)):
            raise Unsupported("training_step updates a torchmetrics Metric, whose state clients would share")
        if not isinstance(rows, slice):
            for name, b in b_rows.items():
                buffers[name][rows] = b
        return gradients, logged

    def _full_gradients(self, stack: Stack, buffers: Tensors, batches: _Batches, rows: Sequence[Assignment]) -> None:
        """Fill the slot "gradient" as a client alone does, one client after the other; buffers stay as they are."""
        before = {name: b.clone() for name, b in buffers.items()}
        for row, one in enumerate(rows):
            size = len(one.batches[0])
            for number, start in enumerate(range(0, len(one.samples), size)):
                part = one.samples[start : start + size]
                g, _ = self._of_rows([row], stack.x, buffers, batches, [part], -number)
                for name, t in g.items():
                    stack.state["gradient"][name][row].add_(t[0], alpha=len(part) / len(one.samples))
        for name, b in buffers.items():
            b.copy_(before[name])


class _TrainingStep(nn.Module):
    """The task's training_step as a forward, so that functional_call reaches it."""

    def __init__(self, task: LightningModule) -> None:
        super().__init__()
        self.task = task

    def forward(self, batch: Any, batch_idx: int) -> Any:
        return self.task.training_step(batch, batch_idx)


class _Batches:
    """Batches of several clients as one, [clients, batch, ...]."""

    def __init__(self, client: Client, work: Sequence[Assignment]) -> None:
        self.client, self.work = client, work
        self.shift = Shift.of([one.features for one in work], client.device)

    def of(self, rows: list[int] | slice, indices: list[np.ndarray], step: int) -> tuple[Any, Tensor]:
        """The samples of each row's indices, which have one size, and the keys [rows] of the step's random numbers."""
        work = self.work[rows] if isinstance(rows, slice) else [self.work[row] for row in rows]
        index, keys = torch.from_numpy(np.stack(indices)).to(self.client.device), self.client.keys(work, step)
        batch = self.client.batch(index, keys, self.shift and self.shift.rows(rows))
        return tree_map(lambda t: t.view(*index.shape, *t.shape[1:]), batch), keys


def _prefixed(tensors: Tensors) -> Tensors:
    return {f"task.{name}": t for name, t in tensors.items()}


def _reason(error: Exception) -> str:
    """One line: what cannot be done together, and the line of the task that does it."""
    own = [
        f for f in traceback.extract_tb(error.__traceback__) if "/site-packages/" not in f.filename.replace("\\", "/")
    ]
    own = [f for f in own if Path(__file__).parent.parent not in Path(f.filename).parents] or own
    where = f" at {Path(own[-1].filename).name}:{own[-1].lineno} ({own[-1].line})" if own else ""
    return f"{type(error).__name__}{where}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
