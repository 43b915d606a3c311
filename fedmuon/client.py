"""One client's local training: gradients of the task, clip, local rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import Any

import numpy as np
import torch
from lightning import LightningModule
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from fedmuon import hooks, keyed
from fedmuon.algorithms.algorithm import Algorithm
from fedmuon.data.feature_shift import Shift
from fedmuon.data.samples import Samples
from fedmuon.engines import dropout
from fedmuon.engines.engine import Assignment, Broadcast, Message, Tensors
from fedmuon.engines.generators import seeded
from fedmuon.engines.layout import channels_last
from fedmuon.engines.stack import Stack, unshared, unstacked
from fedmuon.engines.trace import Traced
from fedmuon.optim.routing import Group
from fedmuon.recorder import Recorder, summing


class ClientError(RuntimeError):
    """Local training failed; the message names client, local step and cause."""


class Client(LightningModule):
    """The local trainer around a task, itself a LightningModule whose `training_step` returns the loss.

    Optimisation is manual: the task's loss, `manual_backward`, the client's own gradient clip and the algorithm's local
    rule, in place on the task's parameters seen as a stack of one client, [1, ...].
    """

    def __init__(self, task: LightningModule, data: Samples) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.task, self.data, self._step = task, data, hooks.step(task.training_step)
        self.recorder, self.key = Recorder(task), dropout.install(task)
        self.repeats = False  # whether the task's operators are the same whenever shapes are: they may be recorded
        self.channels_last = False  # whether convolutions are given their images so: `fedmuon.engines.layout`
        self.meanwhile: Callable[[], None] = lambda: None  # called when there is nothing to do but wait
        self.precision: str | None = None  # of local training: bf16, fp32; None follows trainer.precision
        self.alone = True  # False beside clients on other threads, with whom random generators and hooks are shared
        self._norms = [m for m in task.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        self._switched = [*self._norms, *(m for m in task.modules() if isinstance(m, nn.modules.dropout._DropoutNd))]

    def prepare(
        self, algorithm: Algorithm, groups: Sequence[Group], parameters: Tensors, buffers: Tensors, clip: float | None,
        batch_size: int,
    ) -> None:  # fmt: skip
        """Bind the local state to the task's parameters, once they have their final device and precision."""
        self.stack = Stack(algorithm, groups, {name: p.detach()[None] for name, p in parameters.items()}, clip)
        self.learned, self.buffers_by_name, self.batch_size = parameters, buffers, batch_size
        self._watched = bool(watchers(self.trainer))

    def train_round(self, work: Assignment, broadcast: Broadcast, traced: Traced | None = None) -> Message:
        """Local training from the server's broadcast. Raises `ClientError` with the client, the step and the cause.

        traced: repeats the operators of the rule's steps.
        """
        started = perf_counter()
        step, loss = 0, torch.zeros((), device=self.device, dtype=summing(self.device))
        algorithm, stack = self.stack.algorithm, self.stack
        stack.start(broadcast, [work])
        self._restore_buffers(broadcast)
        self.recorder.reset()
        try:
            with self.seeded(work.seed), self.laid_out(), torch.autocast(self.device.type, enabled=False):
                if algorithm.full_gradient:
                    self._full_gradient(work)
                for step, index in enumerate(work.batches, start=1):
                    gradients, own = self.gradients(work, index, step)
                    loss += own
                    stack.step(gradients, step, traced)
                stack.end([len(work.batches)])
        except Exception as error:
            raise ClientError(f"client {work.client}, local step {step}: {type(error).__name__}: {error}") from error
        return Message(
            client=work.client,
            steps=len(work.batches),
            x=unstacked(stack.x, 0),
            sent=stack.of_client(algorithm.sent, 0),
            kept=stack.of_client(algorithm.kept, 0),
            buffers=self.buffers_by_name,
            metrics={**self.recorder.means(), "loss": float(loss) / max(1, len(work.batches))},
            seconds=perf_counter() - started,
        )

    def seeded(self, seed: int) -> AbstractContextManager[None]:
        """For what a task draws by itself; on several threads `Lanes` sees whether it does."""
        return seeded(seed, self.device) if self.alone else nullcontext()

    def laid_out(self) -> AbstractContextManager[Any]:
        return channels_last(self.task) if self.channels_last else nullcontext()

    @torch.no_grad()
    def restore(self, broadcast: Broadcast) -> None:
        """Put the global model into the task."""
        down = broadcast.states["x"]
        torch._foreach_copy_(list(self.learned.values()), [down[name] for name in self.learned])
        self._restore_buffers(broadcast)

    def _restore_buffers(self, broadcast: Broadcast) -> None:
        for name, buffer in self.buffers_by_name.items():
            buffer.copy_(broadcast.buffers[name])

    def gradients(self, work: Assignment, index: np.ndarray, step: int) -> tuple[Tensors, Tensor]:
        """The gradients of one batch's mean loss, [1, ...], free to be overwritten, and the loss; step: see `keys`."""
        shift = Shift.of([work.features], self.device)
        with self.computing(), self.single(len(index)):
            for p in self.learned.values():
                p.grad = None  # what backward makes is taken as it is: nothing is cleared, nothing added
            self.recorder.batch_size = len(index)
            key = self.keys(work, step)
            self.key.set(key[0])
            batch = self.batch(torch.from_numpy(index).to(self.device)[None], key, shift)
            loss = loss_in(self._step(batch, max(0, step - 1)))
        if self._watched:
            self.manual_backward(loss)
        else:
            loss.backward()
        found = unshared([torch.zeros_like(p) if p.grad is None else p.grad for p in self.learned.values()])
        return {name: g[None] for name, g in zip(self.learned, found, strict=True)}, loss.detach()

    def computing(self) -> AbstractContextManager[Any]:
        """The precision in which local steps compute their loss."""
        if self.precision is None:
            return self.trainer.precision_plugin.train_step_context()
        low = self.precision == "bf16"  # without the cache, which would keep the cast weights of the first step
        return torch.autocast(self.device.type, torch.bfloat16, enabled=low, cache_enabled=False)

    def keys(self, work: Assignment, step: int) -> Tensor:
        """The key of all random numbers in local step 1, 2, ... of a client, int32 [1].

        Step 0, -1, ... are the parts of the full gradient, which come before the first.
        """
        return torch.tensor([keyed.of_step(work.seed, step)], dtype=torch.int32, device=self.device)

    def batch(self, index: Tensor, keys: Tensor, shift: Shift | None) -> Any:
        """The samples of one local step of C clients as they see them, [C * batch, ...], one client's after the other.

        index: of their samples [C, batch];  keys: of the step [C];  shift: what changes their images.
        """
        of_samples = None
        if self.data.augment is not None or shift is not None:
            of_samples = keyed.of_samples(keys, index.shape[1]).flatten()
        batch = self.data.batch(index.flatten(), of_samples)
        if shift is not None and of_samples is not None:
            images, *rest = batch
            batch = (shift(images, of_samples), *rest)
        return self.trainer.precision_plugin.convert_input(batch)

    def switches(self) -> tuple[tuple[bool, Any], ...]:
        """What norms and dropout go by beside tensors, which callbacks may change: what is recorded is of one state."""
        return tuple((module.training, getattr(module, "p", None)) for module in self._switched)

    def follow(self, other: Client) -> None:
        """Take over the switches of the client that this one is a copy of."""
        for module, (training, p) in zip(self._switched, other.switches(), strict=True):
            module.training = training
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.p = p

    @contextmanager
    def single(self, batch_size: int) -> Iterator[None]:
        """One sample has no variance: batch norms use their running statistics and leave them alone."""
        paused = [module for module in self._norms if module.training] if batch_size == 1 else []
        for module in paused:
            module.training = False
        try:
            yield
        finally:
            for module in paused:
                module.training = True

    def _full_gradient(self, work: Assignment) -> None:
        """Fill the slot "gradient" with the gradient over all samples at the round's x; buffers stay as they are."""
        slot, samples, batch_size = self.stack.state["gradient"], work.samples, len(work.batches[0])
        before = {name: b.clone() for name, b in self.buffers_by_name.items()}
        for number, start in enumerate(range(0, len(samples), batch_size)):
            part = samples[start : start + batch_size]
            gradients, _ = self.gradients(work, part, -number)
            for name, g in gradients.items():
                slot[name].add_(g, alpha=len(part) / len(samples))
        for name, b in self.buffers_by_name.items():
            b.copy_(before[name])
        self.recorder.reset()


def watchers(trainer: Any) -> list[str]:
    """The hooks of callbacks that watch every backward pass."""
    hooks = ("on_before_backward", "on_after_backward")
    callbacks = [type(callback) for callback in trainer.callbacks]
    return [f"{c.__name__}.{h}" for c in callbacks for h in hooks if getattr(c, h) is not getattr(Callback, h)]


def loss_in(result: Any) -> Tensor:
    """The loss that a training_step returned, by itself or as "loss" of a dict."""
    loss = result["loss"] if isinstance(result, Mapping) else result
    if not isinstance(loss, Tensor):
        raise TypeError(f"training_step returned {type(result).__name__}; it must return the loss")
    return loss
