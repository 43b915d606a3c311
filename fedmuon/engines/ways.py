"""Two ways to the gradients of several clients: all of them as one stack, or a branch of the device's work for each."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.utils._pytree import tree_map

from fedmuon import hooks
from fedmuon.client import Client, loss_in
from fedmuon.data.feature_shift import Shift
from fedmuon.data.samples import each
from fedmuon.engines.engine import Tensors
from fedmuon.engines.parts import Part
from fedmuon.engines.stack import unshared
from fedmuon.engines.trace import Flat, Traced


class Way(Protocol):
    """Gradients [C, ...], in the memory `into` where it is given, and logged values [C, 2] of one local step."""

    def __call__(
        self, x: Tensors, buffers: Tensors, part: Part, shift: Shift | None, batch_idx: int | Tensor,
        into: Tensors | None,
    ) -> tuple[Tensors, Tensors]:  # fmt: skip
        """x: [C, ...], of the part's clients;  buffers: [C, ...], changed in place;  shift: of their images."""


class Unsupported(RuntimeError):
    """The task cannot run so; the message says why, and where in its code."""


class Loss:
    """The task's training_step as a function: (loss, logged values as (sum, weight), "loss" among them)."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._forward = _TrainingStep(client.task)

    def __call__(
        self, x: Tensors, buffers: Tensors, batch: Any, key: Tensor, size: int, batch_idx: int | Tensor
    ) -> tuple[Tensor, Tensors]:
        self.client.key.set(key)
        self.client.recorder.reset(size)
        result = functional_call(self._forward, _prefixed(x) | _prefixed(buffers), (batch, batch_idx))
        loss = loss_in(result)
        return loss, {**self.client.recorder.take(), "loss": torch.stack([loss.detach(), torch.ones_like(loss)])}

    def batch(self, part: Part, shift: Shift | None) -> tuple[Any, Tensor]:
        """The batches of a part's clients, [C, size, ...], and the keys of their step, [C]."""
        index, keys = part.index, part.keys
        flat = self.client.batch(index, keys, shift)
        return each(lambda t: t.view(*index.shape, *t.shape[1:]), flat), keys


def stacked(loss: Loss, size: int) -> Way:
    """All clients at once, by torch.func over stacked parameters and buffers."""

    def way(
        x: Tensors, buffers: Tensors, part: Part, shift: Shift | None, batch_idx: int | Tensor, into: Tensors | None
    ) -> tuple[Tensors, Tensors]:
        batch, keys = loss.batch(part, shift)

        def one(x: Tensors, buffers: Tensors, batch: Any, key: Tensor) -> tuple[Tensor, Tensors]:
            return loss(x, buffers, batch, key, size, batch_idx)

        try:
            compute = vmap(grad_and_value(one, has_aux=True), randomness="error")
            gradients, (_, logged) = compute(x, buffers, batch, keys)
        finally:
            loss.client.key.forget()
        for name, g in (into or {}).items():
            g.copy_(gradients[name])
        return into or dict(zip(x, unshared([gradients[name] for name in x]), strict=True)), logged

    return way


@contextmanager
def in_turn() -> Iterator[Callable[[int], AbstractContextManager[Any]]]:
    """Branches one after the other."""
    yield lambda number: nullcontext()


def branches(
    loss: Loss,
    size: int,
    side_by_side: Callable[[], AbstractContextManager[Callable[[int], AbstractContextManager[Any]]]] = in_turn,
    channels_last: bool = False,
) -> Way:
    """One client after the other in the code, on a device in branches of their own (`fedmuon.engines.capture`).

    channels_last: images are laid out so, and with them what convolutions compute.
    """

    def laid_out(t: Tensor) -> Tensor:
        return t.contiguous(memory_format=torch.channels_last) if channels_last and t.ndim == 4 else t

    def way(
        x: Tensors, buffers: Tensors, part: Part, shift: Shift | None, batch_idx: int | Tensor, into: Tensors | None
    ) -> tuple[Tensors, Tensors]:
        batch, keys = loss.batch(part, shift)
        rows: list[Tensors] = []
        logged: list[Tensors] = []
        with side_by_side() as branch:
            for row in range(len(keys)):
                with branch(row), torch.enable_grad():
                    own = {name: t[row].detach().requires_grad_() for name, t in x.items()}
                    of_row = {name: b[row] for name, b in buffers.items()}
                    of_client = tree_map(lambda t, row=row: laid_out(t[row]), batch)
                    value, figures = loss(own, of_row, of_client, keys[row], size, batch_idx)
                    found = torch.autograd.grad(value, list(own.values()), allow_unused=True)
                    full = [torch.zeros_like(t) if g is None else g for t, g in zip(own.values(), found, strict=True)]
                    if into is None:
                        rows.append(dict(zip(own, unshared(full), strict=True)))
                    else:
                        for name, g in zip(own, full, strict=True):
                            into[name][row].copy_(g)
                    logged.append(figures)
        gradients = into or {name: _rows([one[name] for one in rows]) for name in x}
        return gradients, {name: _rows([one[name] for one in logged]) for name in logged[0]}

    return way


def _rows(tensors: Sequence[Tensor]) -> Tensor:
    """One above the other; a single one is not copied."""
    return torch.stack(list(tensors)) if len(tensors) > 1 else tensors[0][None]


def repeated(way: Way, client: Client, size: int, traced: Traced) -> Way:
    """The same way to gradients of batches of `size`, whose operators are repeated where shapes come again."""

    def again(
        x: Tensors, buffers: Tensors, part: Part, shift: Shift | None, batch_idx: int | Tensor, into: Tensors | None
    ) -> tuple[Tensors, Tensors]:
        columns = () if shift is None else shift.columns

        def step(flat: Flat) -> tuple[Flat, tuple[str, ...]]:
            given = iter(flat)
            own, own_buffers = ({name: next(given) for name in tensors} for tensors in (x, buffers))
            own_part, number = Part(part.rows, next(given)), next(given)
            own_shift = None if shift is None else shift.around(given)
            found, logged = way(own, own_buffers, own_part, own_shift, number, None)
            return [*(found[name] for name in x), *logged.values()], tuple(logged)

        key = ("gradients", len(part.rows), size, client.switches(), shift and shift.changes)
        number = torch.as_tensor(batch_idx)
        values, names = traced(key, step, [*x.values(), *buffers.values(), part.numbers, number, *columns])
        return dict(zip(x, values, strict=False)), dict(zip(names, values[len(x) :], strict=True))

    return again


def reason(error: BaseException) -> str:
    """One line: what cannot be done so, and the line of the task that does it."""
    own = [
        f for f in traceback.extract_tb(error.__traceback__) if "/site-packages/" not in f.filename.replace("\\", "/")
    ]
    own = [f for f in own if Path(__file__).parent.parent not in Path(f.filename).parents] or own
    where = f" at {Path(own[-1].filename).name}:{own[-1].lineno} ({own[-1].line})" if own else ""
    return f"{type(error).__name__}{where}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


class _TrainingStep(nn.Module):
    """The task's training_step as a forward, so that functional_call reaches it."""

    def __init__(self, task: LightningModule) -> None:
        super().__init__()
        self.task, self._step = task, hooks.step(task.training_step)

    def forward(self, batch: Any, batch_idx: int | Tensor) -> Any:
        return self._step(batch, batch_idx)


def _prefixed(tensors: Tensors) -> Tensors:
    return {f"task.{name}": t for name, t in tensors.items()}
