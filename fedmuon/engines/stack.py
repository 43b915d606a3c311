"""The local state of a stack of clients, and the local step that every engine shares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache

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
        self.repeats = all(type(g.rule).__module__.startswith("fedmuon.") and not g.rule.waits for g in groups)
        some = next(iter(x.values()))
        self.lr = [some.new_zeros(len(some)) for _ in groups]  # [C] of each group
        self.steps: list[Step] = []  # of each group in this round

    def first(self, count: int) -> Stack:
        """The first clients, in the same memory."""
        part, first = copy(self), slice(0, count)
        part.x, part.state = unstacked(self.x, first), self.of_client(tuple(self.state), first)
        part.lr = [lr[first] for lr in self.lr]
        part.steps = [replace(s, x=part.x, state=part.state, lr=s.lr[first]) for s in self.steps]
        return part

    def tensors(self) -> list[Tensor]:
        """All that a step of this round reads and writes beside the gradients."""
        some = self.steps[0]
        of_slots = [t for states in (some.state, some.down) for tensors in states.values() for t in tensors.values()]
        t = some.t if isinstance(some.t, Tensor) else _number(some.t)
        return [*some.x.values(), *of_slots, *(s.lr for s in self.steps), t]

    def around(self, tensors: Iterator[Tensor]) -> Stack:
        """The same with other tensors, in the order of `tensors()`."""
        other, some = copy(self), self.steps[0]
        other.x = {name: next(tensors) for name in some.x}
        other.state, down = (
            {slot: {name: next(tensors) for name in own} for slot, own in states.items()}
            for states in (some.state, some.down)
        )
        other.lr = [next(tensors) for _ in self.steps]
        t = next(tensors)
        other.steps = [
            replace(s, x=other.x, state=other.state, down=down, lr=lr, t=t)
            for s, lr in zip(self.steps, other.lr, strict=True)
        ]
        return other

    @torch.no_grad()
    def start(self, broadcast: Broadcast, work: Sequence[Assignment]) -> None:
        """Begin a round: x and shared slots from the server, kept ones from each client, every other slot from zero."""
        down = broadcast.states
        torch._foreach_copy_(list(self.x.values()), [down["x"][name] for name in self.x])
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
        self.steps = []
        for group, lr in zip(self.groups, self.lr, strict=True):
            lr.fill_(broadcast.factor * group.lr)
            self.steps.append(Step(group.names, self.x, self.state, down, lr, k=0, t=broadcast.t))
            group.rule.begin(self.steps[-1])

    @torch.no_grad()
    def step(self, gradients: Tensors, k: int | Tensor, traced: Traced | None = None) -> None:
        """Local step number k, from gradients [C, ...], overwritten. traced: repeats its operators where it can."""
        if traced is None or traced.how == "none" or not self.repeats:
            self._take(gradients, k)
            return

        def again(flat: Flat) -> tuple[Flat, None]:
            given = iter(flat)
            own, number = {name: next(given) for name in gradients}, next(given)
            self.around(given)._take(own, number)
            return [], None

        held = self.tensors()
        traced(("step", len(self.lr[0]), len(held)), again, [*gradients.values(), torch.as_tensor(k), *held])

    def _take(self, gradients: Tensors, k: int | Tensor) -> None:
        if self.clip is not None:
            _clip(gradients, self.clip)
        for group, s in zip(self.groups, self.steps, strict=True):
            s.k = k
            group.rule.step({name: gradients[name] for name in group.names}, s, self.algorithm.a)

    @torch.no_grad()
    def end(self, steps: Sequence[int]) -> None:
        """After the last local step; `steps` is the number of each client's."""
        for group, s in zip(self.groups, self.steps, strict=True):
            s.k = steps[0] if len(set(steps)) == 1 else s.lr.new_tensor(steps)
            group.rule.end(s)

    def of_client(self, slots: Sequence[str], row: int | slice) -> State:
        """Those slots of one client, [...]: views; nothing for a slot that no parameter here has."""
        return {slot: {name: t[row] for name, t in self.state.get(slot, {}).items()} for slot in slots}


@lru_cache(maxsize=4)
def _number(value: int) -> Tensor:
    return torch.tensor(value)


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
