"""One client's local training: gradients of the task, clip, local rule."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import torch
from lightning import LightningModule
from torch import Tensor, nn

from fedmuon.algorithms.algorithm import Algorithm
from fedmuon.data.samples import Samples
from fedmuon.engines.engine import Assignment, Message
from fedmuon.engines.stack import Stack
from fedmuon.optim.routing import Group
from fedmuon.recorder import Recorder

Tensors = dict[str, Tensor]


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
        self.recorder = Recorder(task)
        self._norms = [m for m in task.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]

    def prepare(
        self, algorithm: Algorithm, groups: Sequence[Group], parameters: Tensors, buffers: Tensors, clip: float | None
    ) -> None:
        """Bind the local state to the task's parameters, once they have their final device and precision."""
        self.stack = Stack(algorithm, groups, {name: p.detach()[None] for name, p in parameters.items()}, clip)
        # kept for the whole run: giving gradients back in every step costs page faults
        self.gradients = {name: torch.zeros_like(x) for name, x in self.stack.x.items()}
        self.learned = parameters
        self.buffers_by_name = buffers

    def train_round(self, work: Assignment, down: dict[str, Tensors], buffers: Tensors) -> Message:
        """Local training from the server's broadcast. Raises `ClientError` with the client, the step and the cause."""
        started = perf_counter()
        step = 0
        self.load(down, buffers, work.factor)
        self.recorder.reset()
        devices = [self.device] if self.device.type == "cuda" else []
        try:
            with torch.random.fork_rng(devices), torch.autocast(self.device.type, enabled=False):
                torch.manual_seed(work.seed)
                for step, index in enumerate(work.batches, start=1):
                    self.backward_loss(torch.from_numpy(index).to(self.device), step)
                    self.stack.step(self.gradients, step)
        except Exception as error:
            raise ClientError(f"client {work.client}, local step {step}: {type(error).__name__}: {error}") from error
        shared = self.stack.algorithm.shared
        return Message(
            client=work.client,
            steps=len(work.batches),
            x={name: x[0] for name, x in self.stack.x.items()},
            slots={slot: {name: t[0] for name, t in self.stack.state[slot].items()} for slot in shared},
            buffers=self.buffers_by_name,
            metrics=self.recorder.means(),
            seconds=perf_counter() - started,
        )

    def load(self, down: dict[str, Tensors], buffers: Tensors, factor: float = 0.0) -> None:
        """Put the global model into the task, and the shared state into the stack."""
        self.stack.start(down, factor)
        for name, p in self.learned.items():
            p.grad = self.gradients[name][0]
        for name, buffer in self.buffers_by_name.items():
            buffer.copy_(buffers[name])

    def backward_loss(self, index: Tensor, step: int) -> None:
        """Gradients of one batch's mean loss, left in `self.gradients`."""
        torch._foreach_zero_(list(self.gradients.values()))
        with self.trainer.precision_plugin.train_step_context():
            batch = self.trainer.precision_plugin.convert_input(self.data.batch(index))
            alone = len(index) == 1 and bool(self._norms)
            if alone:  # one sample has no variance: normalise it by the running statistics and leave them as they are
                _set_training(self._norms, False)
            result = self.task.training_step(batch, step - 1)
            if alone:
                _set_training(self._norms, True)
        loss = result["loss"] if isinstance(result, dict) else result
        self.manual_backward(loss)
        self.recorder.log("loss", loss, batch_size=1)


def _set_training(modules: Sequence[nn.Module], mode: bool) -> None:
    for module in modules:
        module.training = mode
