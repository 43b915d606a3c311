"""The server: it averages what clients send and keeps what the next round starts from."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedmuon.algorithms.algorithm import Algorithm
from fedmuon.comm import payload
from fedmuon.config import Aggregation
from fedmuon.engines.engine import Message
from fedmuon.optim.routing import Group

Tensors = dict[str, Tensor]


class Rejected(RuntimeError):
    """A client sent NaN or infinity and `aggregation.nonfinite` is "raise"."""


class Server:
    """State of the federation: the broadcast of the round, and the running sums of what clients send.

    `parameters` and `buffers` are the task's own tensors; between rounds they hold the global model. The sums run client by
    client in the order of the cohort, with weights p_i that add up to 1 over the clients that can train; where one is
    rejected they are scaled up at the end. D = sum p_i (x_i - x);  G = sum p_i (x - x_i) / (K_i eta_i).
    """

    def __init__(
        self, algorithm: Algorithm, groups: Sequence[Group], parameters: Tensors, buffers: Tensors, policy: Aggregation
    ) -> None:
        self.algorithm, self.groups, self.policy = algorithm, groups, policy
        self.parameters, self.module_buffers = parameters, buffers
        self.buffers = {name: b.clone() for name, b in buffers.items()}
        self.down: dict[str, Tensors] = {"x": _zeros(parameters)}
        if algorithm.a:
            self.down["delta_g"] = _zeros(parameters)
        for slot in algorithm.shared:
            names = [name for group in groups if slot in group.rule.slots for name in group.names]
            self.down[slot] = _zeros({name: parameters[name] for name in names})
        self.update = _zeros(parameters)  # D of the last round that had clients
        self.sums = {key: _zeros(tensors) for key, tensors in self.down.items()}
        self.buffer_sums = {name: torch.zeros_like(b, dtype=_sum_dtype(b)) for name, b in buffers.items()}
        sent = [self.buffers] if policy.buffers == "average" else []
        self.down_bytes = payload([*self.down.values(), *sent])
        self.up_bytes = payload([*(self.down[key] for key in algorithm.upload()), *sent])

    def state(self) -> dict[str, Tensors]:
        """What a checkpoint must hold beside the model and the server optimizer."""
        return {"update": self.update, **{key: tensors for key, tensors in self.down.items() if key != "x"}}

    @torch.no_grad()
    def restore(self, state: dict[str, Tensors]) -> None:
        """Take up the state of a checkpoint."""
        for key, tensors in self.state().items():
            for name, one in tensors.items():
                one.copy_(state[key][name])

    @torch.no_grad()
    def start_round(self, factor: float) -> None:
        """Take the module's parameters and buffers as the global model of the round and clear the sums."""
        self.factor, self.mass, self.square = factor, 0.0, 0.0
        self.rejected: list[int] = []
        torch._foreach_copy_(list(self.down["x"].values()), [p.detach() for p in self.parameters.values()])
        for name, b in self.module_buffers.items():
            self.buffers[name].copy_(b)
        for tensors in (*self.sums.values(), self.buffer_sums):
            for one in tensors.values():
                one.zero_()

    @torch.no_grad()
    def add(self, message: Message, weight: float) -> float:
        """Add one client's message with its weight p_i; return the norm of its change, NaN or infinite if it is rejected."""
        change = {name: message.x[name] - x for name, x in self.down["x"].items()}
        values = [*change.values(), *(t for slot in message.slots.values() for t in slot.values())]
        values += [b for b in message.buffers.values() if b.is_floating_point()]
        norms = _norms(values)
        if not all(map(math.isfinite, norms)):
            if self.policy.nonfinite == "raise":
                raise Rejected(
                    f"client {message.client} sent NaN or infinity (its mean loss was {message.metrics['loss']:.4g}): lower local.lr, "
                    "set local.clip, or choose aggregation.nonfinite=drop|clip"
                )
            self.rejected.append(message.client)
            if self.policy.nonfinite == "drop":
                return math.nan
            for one in values:  # clip: an entry that is not finite counts as no change
                torch.nan_to_num_(one, nan=0.0, posinf=0.0, neginf=0.0)
            norms = _norms(values)
        self.mass += weight
        norm = math.hypot(*norms[: len(change)])
        self.square += weight * norm**2
        for name, d in change.items():
            self.sums["x"][name].add_(d, alpha=weight)
        if "delta_g" in self.sums:
            for group in self.groups:
                if eta := self.factor * group.lr:  # a round of rate zero divides by nothing and leaves G
                    for name in group.names:
                        self.sums["delta_g"][name].add_(change[name], alpha=-weight / (message.steps * eta))
        for slot, tensors in message.slots.items():
            for name, t in tensors.items():
                self.sums[slot][name].add_(t, alpha=weight)
        for name, b in message.buffers.items():
            self.buffer_sums[name].add_(b, alpha=weight)
        return norm

    @torch.no_grad()
    def finish(self) -> dict[str, float]:
        """Set the pseudo-gradient -D and the next broadcast; return the round's aggregation figures.

        With no weight at all there is no gradient, so that the optimizer's step changes nothing, and all state stays.
        """
        if self.mass == 0:
            for p in self.parameters.values():
                p.grad = None
            return {"skipped": 1.0}
        if self.rejected and self.policy.nonfinite == "drop":
            for tensors in (*self.sums.values(), self.buffer_sums):
                torch._foreach_div_(list(tensors.values()), self.mass)
            self.square /= self.mass
        before = {"update": self.update, **{key: self.down[key] for key in self.sums if key != "x"}}
        after = {"update": self.sums["x"], **{key: tensors for key, tensors in self.sums.items() if key != "x"}}
        figures: dict[str, float] = {}
        for key in before:
            if key == "delta_g":
                self._keep_unproduced(after[key])
            figures |= {f"{key}_norm": _norm(after[key]), f"{key}_cosine": _cosine(before[key], after[key])}
            for name, one in before[key].items():
                one.copy_(after[key][name])
        figures["drift"] = math.sqrt(max(0.0, self.square - figures["update_norm"] ** 2))
        for name, p in self.parameters.items():
            p.grad = -self.update[name]
        if self.policy.buffers == "average":
            for name, b in self.module_buffers.items():
                total = self.buffer_sums[name]
                b.copy_(total if b.is_floating_point() else total.round())
        return figures

    def _keep_unproduced(self, delta_g: Tensors) -> None:
        for group in self.groups:
            if not self.factor * group.lr:
                for name in group.names:
                    delta_g[name].copy_(self.down["delta_g"][name])


def _zeros(tensors: Tensors) -> Tensors:
    return {name: torch.zeros_like(t, requires_grad=False) for name, t in tensors.items()}


def _sum_dtype(buffer: Tensor) -> torch.dtype:
    return buffer.dtype if buffer.is_floating_point() else torch.float64


def _norms(tensors: Sequence[Tensor]) -> list[float]:
    """Euclidean norms, read from the device at once; NaN and infinity show in them."""
    return torch.stack([n.double() for n in torch._foreach_norm(list(tensors))]).tolist() if tensors else []


def _norm(tensors: Tensors) -> float:
    return math.hypot(*_norms(list(tensors.values())))


def _cosine(a: Tensors, b: Tensors) -> float:
    """Cosine between two directions over all parameters; 0 where one of them is zero."""
    scale = _norm(a) * _norm(b)
    return sum(float((a[name] * b[name]).sum()) for name in a) / scale if scale else 0.0
