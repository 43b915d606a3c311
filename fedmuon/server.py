"""The server: it averages what clients send and keeps what the next round starts from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedmuon.algorithms.algorithm import Algorithm, Sums
from fedmuon.comm import payload
from fedmuon.config import Aggregation
from fedmuon.engines.engine import Broadcast, Message, State, Tensors
from fedmuon.optim.routing import Group


class Rejected(RuntimeError):
    """A client sent NaN or infinity and `aggregation.nonfinite` is "raise"."""


class Server:
    """States of the federation by name, [...], and the running sums of what clients send.

    `parameters` and `buffers` are the task's own tensors; between rounds they hold the global model. The sums run
    client by client in the order of the cohort, with weights p_i that add up to 1 over the clients that can train;
    where one is rejected they are scaled up at the end. D = sum p_i (x_i - x);  G = sum p_i (x - x_i) / (K_i eta_i).
    """

    def __init__(
        self, algorithm: Algorithm, groups: Sequence[Group], parameters: Tensors, buffers: Tensors, policy: Aggregation
    ) -> None:
        self.algorithm, self.groups, self.policy = algorithm, groups, policy
        self.parameters, self.module_buffers = parameters, buffers
        self.buffers = {name: b.clone() for name, b in buffers.items()}
        self.x = _zeros(parameters)
        self.states: State = {"update": _zeros(parameters)}  # D of the last round that had clients
        if algorithm.a:
            self.states["delta_g"] = _zeros(parameters)
        for name in (*algorithm.shared, *algorithm.secret):
            self.states[name] = {n: t.fill_(algorithm.initial(name)) for n, t in self._slot(name).items()}
        self.t = 0
        self.sums: State = {"x": _zeros(parameters), **{slot: self._slot(slot) for slot in algorithm.sent}}
        if algorithm.a:
            self.sums["delta_g"] = _zeros(parameters)
        self.buffer_sums = {name: torch.zeros_like(b, dtype=_sum_dtype(b)) for name, b in buffers.items()}
        with_buffers = [buffers] if policy.buffers == "average" else []
        self.down_bytes = payload([*self._down().values(), *with_buffers])
        self.up_bytes = payload([*(self.sums[key] for key in algorithm.upload()), *with_buffers])

    def _slot(self, slot: str) -> Tensors:
        """Zeros of a slot for the parameters whose rule has it, of the server's own states for all parameters."""
        of_clients = slot in self.algorithm.sent or any(slot in group.rule.slots for group in self.groups)
        rules = [group for group in self.groups if slot in group.rule.slots or not of_clients]
        shapes = {
            n: group.rule.slot_like(slot, self.parameters[n].detach()[None]) for group in rules for n in group.names
        }
        return {name: t[0] for name, t in shapes.items()}

    def _down(self) -> State:
        return {"x": self.x, **{name: self.states[name] for name in self.algorithm.broadcast() if name != "x"}}

    def checkpoint(self) -> dict[str, Any]:
        """What a checkpoint must hold beside the model and the server's optimizer."""
        return {**self.states, "t": self.t}

    @torch.no_grad()
    def restore(self, saved: dict[str, Any]) -> None:
        """Take up the state of a checkpoint."""
        self.t = saved["t"]
        for key, tensors in self.states.items():
            for name, one in tensors.items():
                one.copy_(saved[key][name])

    @torch.no_grad()
    def start_round(self, factor: float) -> Broadcast:
        """Take the module's parameters and buffers as the global model of the round; clear the sums."""
        self.factor, self.mass, self.square, self.steps, self.most_steps = factor, 0.0, 0.0, 0.0, 0
        self.rejected: list[int] = []
        for name, p in self.parameters.items():
            self.x[name].copy_(p)
        for name, b in self.module_buffers.items():
            self.buffers[name].copy_(b)
        for tensors in (*self.sums.values(), self.buffer_sums):
            for one in tensors.values():
                one.zero_()
        self.broadcast = Broadcast(self._down(), self.buffers, factor, self.t)
        return self.broadcast

    @torch.no_grad()
    def add(self, message: Message, weight: float) -> float:
        """Add one client's message with its weight p_i; return the norm of its change, NaN if it is left out."""
        change = {name: message.x[name] - x for name, x in self.x.items()}
        values = [*change.values(), *(t for slot in message.sent.values() for t in slot.values())]
        values += [b for b in message.buffers.values() if b.is_floating_point()]
        norms = _norms(values)
        if not all(map(math.isfinite, norms)):
            if not self._accept(message, change):
                return math.nan
            norms = _norms(values)
        norm = math.hypot(*norms[: len(change)])
        self.mass += weight
        weigh = self.algorithm.weigh(message.steps)
        self.square += weight * (weigh * norm) ** 2
        self.steps += weight * message.steps
        self.most_steps = max(self.most_steps, message.steps)
        _add(self.sums["x"], change, weight * weigh)
        if "delta_g" in self.sums:
            for group in self.groups:
                if eta := self.factor * group.lr:  # a round of rate zero divides by nothing and leaves G
                    part = {name: change[name] for name in group.names}
                    _add(self.sums["delta_g"], part, -weight / (message.steps * eta))
        for slot, tensors in message.sent.items():
            _add(self.sums[slot], tensors, weight)
        _add(self.buffer_sums, message.buffers, weight)
        return norm

    def _accept(self, message: Message, change: Tensors) -> bool:
        """Deal with a message that is not finite, by policy; False leaves it out."""
        if self.policy.nonfinite == "raise":
            raise Rejected(
                f"client {message.client} sent NaN or infinity (its mean loss was {message.metrics['loss']:.4g}): "
                "lower local.lr, set local.clip, or choose aggregation.nonfinite=drop|clip"
            )
        self.rejected.append(message.client)
        if self.policy.nonfinite == "drop":
            return False
        for name, d in change.items():
            _mend(d, torch.zeros_like(self.x[name]))
        for slot, tensors in message.sent.items():
            for name, t in tensors.items():
                _mend(t, self.states[slot][name] if slot in self.states else torch.zeros_like(t))
        for name, b in message.buffers.items():
            _mend(b, self.buffers[name])
        return True

    @torch.no_grad()
    def finish(self, share: float) -> dict[str, float]:
        """Set the pseudo-gradient and the states of the next round; return the round's aggregation figures.

        share: of the cohort's weight in the population's. With no weight at all there is no gradient, so that the
        optimizer's step changes nothing, and all state stays.
        """
        if self.mass == 0:
            for p in self.parameters.values():
                p.grad = None
            return {"skipped": 1.0}
        if self.rejected and self.policy.nonfinite == "drop":
            for one in (t for tensors in (*self.sums.values(), self.buffer_sums) for t in tensors.values()):
                one.div_(self.mass)
            self.square, self.steps, share = self.square / self.mass, self.steps / self.mass, share * self.mass
        before = {name: {n: t.clone() for n, t in tensors.items()} for name, tensors in self.states.items()}
        self._keep("update", self.sums["x"], self.groups)
        if "delta_g" in self.sums:
            self._keep("delta_g", self.sums["delta_g"], [g for g in self.groups if self.factor * g.lr])
        self.algorithm.aggregate(self.states, self.sums, Sums(share, self.steps))
        self.t += self.most_steps
        for name, p in self.parameters.items():
            p.grad = -self.sums["x"][name]
        for name, b in self.module_buffers.items() if self.policy.buffers == "average" else ():
            total = self.buffer_sums[name]
            b.copy_(total if b.is_floating_point() else total.round())
        figures: dict[str, float] = {}
        for name, tensors in self.states.items():
            figures |= {f"{name}_norm": _norm(tensors), f"{name}_cosine": _cosine(before[name], tensors)}
        figures["drift"] = math.sqrt(max(0.0, self.square - figures["update_norm"] ** 2))
        return figures

    def _keep(self, state: str, means: Tensors, groups: Sequence[Group]) -> None:
        for name in (name for group in groups for name in group.names):
            self.states[state][name].copy_(means[name])


def _mend(t: Tensor, before: Tensor) -> None:
    """Entries that are not finite become what they were before the round: they count as no change."""
    t.copy_(torch.where(torch.isfinite(t), t, before))


def _zeros(tensors: Tensors) -> Tensors:
    return {name: torch.zeros_like(t, requires_grad=False) for name, t in tensors.items()}


def _add(sums: Tensors, tensors: Tensors, weight: float) -> None:
    for name, t in tensors.items():
        sums[name].add_(t, alpha=weight)


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
