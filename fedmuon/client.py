"""One client's local training: gradients of the task, clip, local rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter
from typing import Any

import numpy as np
import torch
from lightning import LightningModule
from torch import Tensor, nn

from fedmuon import keyed
from fedmuon.algorithms.algorithm import Algorithm
from fedmuon.data.feature_shift import Shift
from fedmuon.data.samples import Samples
from fedmuon.engines import dropout
from fedmuon.engines.engine import Assignment, Broadcast, Message, Tensors
from fedmuon.engines.stack import Stack, unstacked
from fedmuon.optim.routing import Group
from fedmuon.recorder import Recorder


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
        self.task, self.data = task, data
        self.recorder, self.key = Recorder(task), dropout.install(task)
        self.precision: str | None = None  # of local training: bf16, fp32; None follows trainer.precision
        self.alone = True  # False beside clients on other threads, with whom torch's generator and hooks are shared
        self._norms = [m for m in task.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]

    def prepare(
        self, algorithm: Algorithm, groups: Sequence[Group], parameters: Tensors, buffers: Tensors, clip: float | None
    ) -> None:
        """Bind the local state to the task's parameters, once they have their final device and precision."""
        self.stack = Stack(algorithm, groups, {name: p.detach()[None] for name, p in parameters.items()}, clip)
        # kept for the whole run: giving gradients back in every step costs page faults
        self.gradients = {name: torch.zeros_like(x) for name, x in self.stack.x.items()}
        self.learned, self.buffers_by_name = parameters, buffers

    def train_round(self, work: Assignment, broadcast: Broadcast) -> Message:
        """Local training from the server's broadcast. Raises `ClientError` with the client, the step and the cause."""
        started = perf_counter()
        step, loss = 0, torch.zeros((), device=self.device)
        algorithm, stack = self.stack.algorithm, self.stack
        self.restore(broadcast)
        stack.start(broadcast, [work])
        self.recorder.reset()
        try:
            with self._seeded(work.seed), torch.autocast(self.device.type, enabled=False):
                if algorithm.full_gradient:
                    self._full_gradient(work)
                for step, index in enumerate(work.batches, start=1):
                    loss += self.backward_loss(work, index, step)
                    stack.step(self.gradients, step)
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

    @contextmanager
    def _seeded(self, seed: int) -> Iterator[None]:
        """torch's own generators, for what a task draws by itself; afterwards they are what they were."""
        if not self.alone:
            yield
            return
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(seed)
            yield

    def restore(self, broadcast: Broadcast) -> None:
        """Put the global model into the task."""
        with torch.no_grad():
            for name, p in self.learned.items():
                p.copy_(broadcast.states["x"][name])
                p.grad = self.gradients[name][0]
        for name, buffer in self.buffers_by_name.items():
            buffer.copy_(broadcast.buffers[name])

    def backward_loss(self, work: Assignment, index: np.ndarray, step: int) -> Tensor:
        """Gradients of one batch's mean loss, left in `self.gradients`; returns the loss. `step`: see `keys`."""
        torch._foreach_zero_(list(self.gradients.values()))
        self.recorder.batch_size = len(index)
        keys, shift = self.keys([work], step), Shift.of([work.features], self.device)
        self.key.set(keys[0])
        with self.computing(), self.single(len(index)):
            batch = self.batch(torch.from_numpy(index).to(self.device)[None], keys, shift)
            loss = loss_in(self.task.training_step(batch, max(0, step - 1)))
        if self.alone:
            self.manual_backward(loss)
        else:
            loss.backward()
        return loss.detach()

    def computing(self) -> AbstractContextManager[Any]:
        """The precision in which local steps compute their loss."""
        if self.precision is None:
            return self.trainer.precision_plugin.train_step_context()
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def keys(self, work: Sequence[Assignment], step: int) -> Tensor:
        """The keys of all random numbers in local step 1, 2, ... of each client, int32 [C].

        Step 0, -1, ... are the parts of the full gradient, which come before the first.
        """
        return torch.tensor([keyed.of_step(one.seed, step) for one in work], dtype=torch.int32, device=self.device)

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
            self.backward_loss(work, part, -number)
            for name, g in self.gradients.items():
                slot[name].add_(g, alpha=len(part) / len(samples))
        for name, b in self.buffers_by_name.items():
            b.copy_(before[name])
        self.recorder.reset()


def loss_in(result: Any) -> Tensor:
    """The loss that a training_step returned, by itself or as "loss" of a dict."""
    loss = result["loss"] if isinstance(result, Mapping) else result
    if not isinstance(loss, Tensor):
        raise TypeError(f"training_step returned {type(result).__name__}; it must return the loss")
    return loss
