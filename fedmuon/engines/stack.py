"""The local state of a stack of clients, and the local step that every engine shares."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedmuon.algorithms.algorithm import Algorithm, Step
from fedmuon.optim.routing import Group

Tensors = dict[str, Tensor]


class Stack:
    """Parameters and rule states of C clients as tensors [C, ...]; one local step is `step(gradients, k)`.

    `x` may be views of a module's own parameters: everything happens in place. `clip` bounds the gradient norm of each
    client over all its parameters, as torch.nn.utils.clip_grad_norm_ does for one model; None does not.
    """

    def __init__(self, algorithm: Algorithm, groups: Sequence[Group], x: Tensors, clip: float | None) -> None:
        self.algorithm, self.groups, self.x, self.clip = algorithm, groups, x, clip
        self.state: dict[str, Tensors] = {}
        for group in groups:
            for slot in group.rule.slots:
                self.state.setdefault(slot, {}).update({name: torch.zeros_like(x[name]) for name in group.names})

    @torch.no_grad()
    def start(self, down: dict[str, Tensors], factor: float) -> None:
        """Begin a round: parameters and shared slots from the server, every other slot from zero."""
        self.down = down
        for name, x in self.x.items():
            x.copy_(down["x"][name])
        for slot, tensors in self.state.items():
            for name, one in tensors.items():
                if name in down.get(slot, ()):
                    one.copy_(down[slot][name])
                else:
                    one.zero_()
        any_x = next(iter(self.x.values()))
        self.rates = [any_x.new_full((len(any_x),), factor * group.lr) for group in self.groups]

    @torch.no_grad()
    def step(self, gradients: Tensors, k: int) -> None:
        """One local step from gradients [C, ...], which may be overwritten."""
        if self.clip is not None:
            _clip(gradients, self.clip)
        for group, lr in zip(self.groups, self.rates, strict=True):
            now = Step(self.x, self.down["x"], self.state, self.down, lr, k)
            group.rule.step({name: gradients[name] for name in group.names}, now, self.algorithm.a)


def _clip(gradients: Tensors, bound: float) -> None:
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)  # [C]: never across clients
    scale = (bound / (norms + 1e-6)).clamp(max=1.0)
    for g in gradients.values():
        g.mul_(scale.view(-1, *[1] * (g.ndim - 1)))
