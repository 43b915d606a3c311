"""The local state of a stack of clients, and the local step that every engine shares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace

import torch
from torch import Tensor

from fedmuon.algorithms.algorithm import Algorithm, Step, column
from fedmuon.engines.engine import Assignment, Broadcast, State, Tensors
from fedmuon.engines.trace import Flat, Traced
from fedmuon.optim.routing import Group


class Stack:
    """Parameters and rule states of C clients as tensors [C, ...]: `start` a round, `step` for each batch, `end` it.

    `x` may be views of a module's own parameters: everything happens in place. `clip` bounds the gradient norm of each
    client over all its parameters, as torch.nn.utils.clip_grad_norm_ does for one model; None does not.
    """

    def __init__(self, algorithm: Algorithm, groups: Sequence[Group], x: Tensors, clip: float | None) -> None:
        self.algorithm, self.groups, self.x, self.clip = algorithm, groups, x, clip
        self.state: State = {}
        for group in groups:
            for slot in group.rule.slots:
                fresh = {name: group.rule.slot_like(slot, x[name]) for name in group.names}
                self.state.setdefault(slot, {}).update(fresh)
        # a rule of one's own may compute with numbers of Python that a record would not repeat
        self._own = all(type(g.rule).__module__.startswith("fedmuon.") and not g.rule.waits for g in groups)
        some = next(iter(x.values()))
        self.lr = [some.new_zeros(len(some)) for _ in groups]  # [C] of each group

    def first(self, count: int) -> Stack:
        """The first clients, in the same memory."""
        part = copy(self)
        part.x, part.state = unstacked(self.x, slice(0, count)), self.of_client(tuple(self.state), slice(0, count))
        part.lr = [lr[:count] for lr in self.lr]
        return part

    @torch.no_grad()
    def start(self, broadcast: Broadcast, work: Sequence[Assignment]) -> None:
        """Begin a round: x and shared slots from the server, kept ones from each client, every other slot from zero."""
        down = broadcast.states
        for name, x in self.x.items():
            x.copy_(down["x"][name])
        for slot, tensors in self.state.items():
            for name, one in tensors.items():
                if slot in self.algorithm.kept:
                    for row, client in zip(one, work, strict=True):
                        row.zero_()
                        if slot in client.kept:
                            row.copy_(client.kept[slot][name])
                elif name in down.get(slot, ()):
                    one.copy_(down[slot][name])
                else:
                    one.zero_()
        self._steps: list[Step] = []
        self._views: dict[int, list[Step]] = {}
        self._held: dict[int, list[Tensor]] = {}
        for group, lr in zip(self.groups, self.lr, strict=True):
            lr.fill_(broadcast.factor * group.lr)
            self._steps.append(Step(group.names, self.x, self.state, down, lr, k=0, t=broadcast.t))
            group.rule.begin(self._steps[-1])

    @torch.no_grad()
    def step(
        self, gradients: Tensors, k: int | Tensor, active: int | None = None, traced: Traced | None = None
    ) -> None:
        """Local step number k of the first `active` clients (None: all), from gradients [active, ...], overwritten.

        traced: repeats the operators of a step where it can.
        """
        steps = self._first(active)
        if traced is None or traced.how == "none" or not self._own:
            self._take(steps, gradients, k)
            return
        clients = len(steps[0].lr)
        if clients not in self._held:
            self._held[clients] = _held(steps)
        held = self._held[clients]

        def step(flat: Flat) -> tuple[Flat, None]:
            given = iter(flat)
            own, number = {name: next(given) for name in gradients}, next(given)
            self._take(_around(steps, given, number), own, number)
            return [], None

        key = ("step", clients, len(held))
        traced(key, step, [*gradients.values(), torch.tensor(k), *held])

    def _take(self, steps: Sequence[Step], gradients: Tensors, k: int | Tensor) -> None:
        if self.clip is not None:
            _clip(gradients, self.clip)
        for group, s in zip(self.groups, steps, strict=True):
            s.k = k
            group.rule.step({name: gradients[name] for name in group.names}, s, self.algorithm.a)

    @torch.no_grad()
    def end(self, steps: Sequence[int]) -> None:
        """After the last local step; `steps` is the number of each client's."""
        for group, s in zip(self.groups, self._steps, strict=True):
            s.k = steps[0] if len(set(steps)) == 1 else s.lr.new_tensor(steps)
            group.rule.end(s)

    def _first(self, active: int | None) -> list[Step]:
        """What the rules of the first clients are told: views of the whole stack's tensors."""
        if active is None or active == len(self._steps[0].lr):
            return self._steps
        if active not in self._views:
            x = {name: t[:active] for name, t in self.x.items()}
            state = {slot: {name: t[:active] for name, t in tensors.items()} for slot, tensors in self.state.items()}
            self._views[active] = [replace(s, x=x, state=state, lr=s.lr[:active]) for s in self._steps]
        return self._views[active]

    def of_client(self, slots: Sequence[str], row: int | slice) -> State:
        """Those slots of one client, [...]: views; nothing for a slot that no parameter here has."""
        return {slot: {name: t[row] for name, t in self.state.get(slot, {}).items()} for slot in slots}


def _held(steps: Sequence[Step]) -> list[Tensor]:
    """The tensors of a round's steps, one after the other."""
    some = steps[0]
    of_slots = [t for states in (some.state, some.down) for tensors in states.values() for t in tensors.values()]
    return [*some.x.values(), *of_slots, *(s.lr for s in steps), torch.as_tensor(some.t)]


def _around(steps: Sequence[Step], held: Iterator[Tensor], k: Tensor) -> list[Step]:
    """The same steps with other tensors, in the order of `_held`."""
    some = steps[0]
    x = {name: next(held) for name in some.x}
    state, down = (
        {slot: {name: next(held) for name in tensors} for slot, tensors in states.items()}
        for states in (some.state, some.down)
    )
    rates = [next(held) for _ in steps]
    t = next(held)
    return [replace(s, x=x, state=state, down=down, lr=lr, k=k, t=t) for s, lr in zip(steps, rates, strict=True)]


def _clip(gradients: Tensors, bound: float) -> None:
    norms = torch.stack([g.reshape(len(g), -1).norm(dim=1) for g in gradients.values()]).norm(dim=0)  # [C], per client
    scale = (bound / (norms + 1e-6)).clamp(max=1.0)
    for g in gradients.values():
        g.mul_(column(scale, g))


def unstacked(x: Tensors, row: int | slice | Tensor) -> dict[str, Tensor]:
    """One client's part of a stack, [...], or that of several, [clients, ...]: views, copies of rows in a tensor."""
    return {name: t[row] for name, t in x.items()}


def unshared(gradients: Sequence[Tensor]) -> list[Tensor]:
    """The same, each with memory of its own: a sum hands one gradient to both its terms, and rules overwrite theirs."""
    seen: set[int] = set()
    own = []
    for g in gradients:
        memory = g.untyped_storage().data_ptr()
        own.append(g.clone() if memory in seen else g)
        seen.add(memory)
    return own
