"""The server: it averages what clients send and keeps what the next round starts from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from fedmuon.algorithms.algorithm import Algorithm, Sums
from fedmuon.buffers import Buffers
from fedmuon.comm import Channel, memory, payload
from fedmuon.config import Aggregation, Compression
from fedmuon.engines.engine import Broadcast, Message, State, Tensors
from fedmuon.optim.routing import Group
from fedmuon.recorder import summing


class Rejected(RuntimeError):
    """A client sent NaN or infinity and `aggregation.nonfinite` is "raise"."""


class Server:
    """States of the federation by name, [...], and the running sums of what clients send.

    `parameters` and `buffers` are the task's own tensors; between rounds they hold the global model. The sums run
    client by client in the order of the cohort, with weights p_i that add up to 1 over the clients that can train;
    where one is rejected they are scaled up at the end. D = sum p_i (x_i - x);  G = sum p_i (x - x_i) / (K_i eta_i).

    Compression (`up` and `down`) touches what travels. Up: x as the change x_i - x, other states as they are; the error
    feedback stays with the client. Down: bfloat16 and 8 bits code every state as it is, so that any client reads any
    message; rank and sparsity code x as its change against `x`, what clients hold (in the first round x travels whole),
    other states as they are. What they leave out of x comes with later changes; without error feedback the server takes
    on what clients hold instead, and it is lost. A change is of use to a client that holds the round before: one that
    was not in the last cohort is sent all the changes it missed, or x as clients hold it where that is smaller
    (`down_bytes`). `x` is what the clients of a round start from; with `down` compression `exact` is the global model.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        groups: Sequence[Group],
        parameters: Tensors,
        buffers: Tensors,
        policy: Aggregation,
        compression: Compression | None = None,
        seed: int = 0,
    ) -> None:
        self.algorithm, self.groups, self.policy = algorithm, groups, policy
        self.parameters, self.buffers = parameters, Buffers(buffers, averaged=policy.buffers == "average")
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
        if type(algorithm).weigh is not Algorithm.weigh:
            self.sums["update"] = _zeros(parameters)  # D: what "x" sums is weighed
        compression, with_buffers = compression or Compression(), buffers if self.buffers.averaged else {}
        uploaded = {key: self.sums[key] for key in algorithm.upload()}
        self.up = Channel("up", compression.up, uploaded, with_buffers, algorithm.positive, seed)
        self.down = Channel("down", compression.down, self._down(), with_buffers, algorithm.positive, seed)
        self.errors: State = {}  # error feedback of what the server sends
        self.exact = _zeros(parameters) if self.down.coded.get("x") else {}
        self.by_change = bool(self.exact) and self.down.code is not None and not self.down.code.whole
        self.holds = False  # whether clients hold an x that a change could be added to
        self.even = False  # whether the last round's clients took equally many steps, at rates that were not zero

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
        held = {"held": self.x} if self.by_change else {}
        return {**self.states, **self.errors, **held, "t": self.t, "even": self.even}

    @torch.no_grad()
    def restore(self, saved: dict[str, Any]) -> None:
        """Take up the state of a checkpoint."""
        self.t, self.even, self.holds = saved["t"], saved.get("even", False), "held" in saved
        for name, one in self.x.items() if self.holds else ():
            one.copy_(saved["held"][name])
        like = self.x | {n: t for tensors in self.states.values() for n, t in tensors.items()}
        for key in map(memory, self.down.coded):
            if key in saved:
                self.errors[key] = {name: t.to(like[name].device, copy=True) for name, t in saved[key].items()}
        for key, tensors in self.states.items():
            for name, one in tensors.items():
                one.copy_(saved[key][name])

    @torch.no_grad()
    def start_round(self, factor: float, round: int = 0) -> Broadcast:
        """Take the module's parameters and buffers as the global model of the round; clear the sums."""
        self.factor, self.mass, self.square, self.steps, self.most_steps = factor, 0.0, 0.0, 0.0, 0
        self.round, self.least_steps = round, 0
        self.rejected: list[int] = []
        self.buffers.start_round()
        torch._foreach_zero_(_listed(self.sums))
        return Broadcast(self._sent(), self.buffers.start, factor, self.t)

    def _sent(self) -> State:
        """What clients receive: the global model in `self.x`, and the other states."""
        draws = self.down.draws(self.round, next(iter(self.x.values())).device)
        model = {name: p.detach() for name, p in self.parameters.items()}
        _copy(self.exact, {name: model[name] for name in self.exact})
        if self.by_change and self.holds:
            coded = self.down.coded["x"]
            change = {name: model[name] - x for name, x in self.x.items()}
            arrived = self.down.carry("x", change, {}, draws)
            model = {name: x + arrived[name] if name in coded else model[name] for name, x in self.x.items()}
            if not self.down.feedback:
                self.exact = {name: x.clone() for name, x in model.items()}
        elif not self.by_change:
            model = self.down.carry("x", model, self.errors, draws)
        _copy(self.x, model)
        self.holds = True
        others = [name for name in self.algorithm.broadcast() if name != "x"]
        return {"x": self.x, **{name: self.down.carry(name, self.states[name], self.errors, draws) for name in others}}

    @property
    def horizon(self) -> int:
        """Rounds after which it does not matter any more how many a client missed."""
        whole, change = payload([self.x]), self.down.sizes["x"]
        return math.ceil(whole / max(1, change)) if self.by_change else int("delta_g" in self.states)

    def down_bytes(self, ago: float) -> float:
        """Bytes sent to a client that was last in a cohort `ago` rounds ago; infinite for never."""
        if not self.by_change:
            return self.down.bytes
        change, whole = self.down.sizes["x"], payload([self.x])
        return self.down.bytes - change + min(change * ago, whole)

    @torch.no_grad()
    def add(self, message: Message, weight: float) -> float:
        """Add one client's message with its weight p_i; return the norm of its change, NaN if it is left out.

        Compressed, the change is what arrives of it; `message.errors` becomes what is left for the client's next one.
        """
        differences = torch._foreach_sub([message.x[name] for name in self.x], list(self.x.values()))
        change = dict(zip(self.x, differences, strict=True))
        buffers = self.buffers.flat(message.buffers)
        norms = _read(_norms([*differences, *_listed(message.sent), *self.buffers.changes(buffers)]))
        if not all(map(math.isfinite, norms)):
            if not self._accept(message, change):
                return math.nan
            buffers = self.buffers.flat(message.buffers)
            norms = _read(_norms(differences))
        sent = message.sent
        if self.up.compresses:
            draws = self.up.draws(self.round, next(iter(change.values())).device, message.client)
            change = self.up.carry("x", change, message.errors, draws)
            sent = {slot: self.up.carry(slot, tensors, message.errors, draws) for slot, tensors in sent.items()}
            norms = _read(_norms(list(change.values())))
        norm = math.hypot(*norms[: len(change)])
        self.mass += weight
        self.square += weight * norm**2
        self.steps += weight * message.steps
        self.most_steps = max(self.most_steps, message.steps)
        self.least_steps = min(self.least_steps or message.steps, message.steps)
        _add(self.sums["x"], change, weight * self.algorithm.weigh(message.steps))
        if "update" in self.sums:
            _add(self.sums["update"], change, weight)
        if "delta_g" in self.sums:
            for group in self.groups:
                if eta := self.factor * group.lr:  # a round of rate zero divides by nothing and leaves G
                    part = {name: change[name] for name in group.names}
                    _add(self.sums["delta_g"], part, -weight / (message.steps * eta))
        for slot, tensors in sent.items():
            _add(self.sums[slot], tensors, weight)
        self.buffers.add(buffers, weight)
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
            _mend(b, self.buffers.start[name])
        return True

    @torch.no_grad()
    def mended(self, kept: State, before: State) -> State:
        """What a client keeps whose message was not finite, given what it held before.

        Dropped, it took no part. Clipped, entries that are not finite count as no change here too, so that what goes
        with a sum, as SCAFFOLD's c_i with c, stays in step with it.
        """
        held = {slot: before[slot] for slot in kept if slot in before}
        if self.policy.nonfinite == "drop":
            return held
        for slot, tensors in kept.items():
            for name, t in tensors.items():
                _mend(t, held[slot][name].to(t.device) if slot in held else torch.zeros_like(t))
        return kept

    @torch.no_grad()
    def finish(self, share: float) -> dict[str, float]:
        """Set the pseudo-gradient and the states of the next round; return the round's aggregation figures.

        share: of the cohort's weight in the population's. With no weight at all there is no gradient, so that the
        optimizer's step changes nothing, and all state stays.
        """
        _copy(self.parameters, self.exact)  # clients trained, maybe in the same memory, from what they held
        self.even = self.mass > 0 and self.factor > 0 and self.least_steps == self.most_steps
        if self.mass == 0:
            for p in self.parameters.values():
                p.grad = None
            return {"skipped": 1.0}
        if self.rejected and self.policy.nonfinite == "drop":
            torch._foreach_div_(_listed(self.sums), self.mass)
            self.square, self.steps, share = self.square / self.mass, self.steps / self.mass, share * self.mass
        else:
            self.mass = 1.0  # it is, but for rounding
        before = {name: [t.clone() for t in tensors.values()] for name, tensors in self.states.items()}
        self._keep("update", self.sums.get("update", self.sums["x"]), self.groups)
        if "delta_g" in self.sums:
            self._keep("delta_g", self.sums["delta_g"], [g for g in self.groups if self.factor * g.lr])
        self.algorithm.aggregate(self.states, self.sums, Sums(share, self.steps))
        self.t += self.most_steps
        gradients = torch._foreach_neg([self.sums["x"][name] for name in self.parameters])
        for p, gradient in zip(self.parameters.values(), gradients, strict=True):
            p.grad = gradient
        self.buffers.finish(self.mass)
        figures = _compared(before, self.states)
        figures["drift"] = math.sqrt(max(0.0, self.square - figures["update_norm"] ** 2))
        return figures

    def _keep(self, state: str, means: Tensors, groups: Sequence[Group]) -> None:
        _copy(self.states[state], {name: means[name] for group in groups for name in group.names})


def _mend(t: Tensor, before: Tensor) -> None:
    """Entries that are not finite become what they were before the round: they count as no change."""
    t.copy_(torch.where(torch.isfinite(t), t, before))


def _zeros(tensors: Tensors) -> Tensors:
    return {name: torch.zeros_like(t, requires_grad=False) for name, t in tensors.items()}


def _add(sums: Tensors, tensors: Tensors, weight: float) -> None:
    if tensors:
        torch._foreach_add_([sums[name] for name in tensors], list(tensors.values()), alpha=weight)


def _copy(to: Tensors, tensors: Tensors) -> None:
    if tensors:
        torch._foreach_copy_([to[name] for name in tensors], list(tensors.values()))


def _listed(states: State) -> list[Tensor]:
    return [t for tensors in states.values() for t in tensors.values()]


def _norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Euclidean norms, 0-d; NaN and infinity show in them."""
    return list(torch._foreach_norm(list(tensors))) if tensors else []


def _read(numbers: Sequence[Tensor]) -> list[float]:
    """Numbers, 0-d, read from the device at once."""
    if len({one.dtype for one in numbers}) > 1:
        numbers = [one.to(summing(one.device)) for one in numbers]
    return torch.stack(list(numbers)).tolist() if numbers else []


def _compared(before: Mapping[str, list[Tensor]], now: State) -> dict[str, float]:
    """Of every state its norm, and the cosine between what it was and is, 0 where one of them is zero."""
    numbers: list[Tensor] = []
    for name, old in before.items():
        new = list(now[name].values())
        products = torch._foreach_mul(old, new) if old else []
        numbers += [*_norms(old), *_norms(new), *(product.sum() for product in products)]
    figures: dict[str, float] = {}
    read = iter(_read(numbers))
    for name, old in before.items():
        was, norm, product = (list(islice(read, len(old))) for _ in range(3))
        scale = math.hypot(*was) * math.hypot(*norm)
        figures |= {f"{name}_norm": math.hypot(*norm), f"{name}_cosine": sum(product) / scale if scale else 0.0}
    return figures
