"""Messages on their way: their bytes, and what compression leaves of them.

What is sent follows from an algorithm's declaration; no algorithm counts bytes or compresses anything itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedmuon.compression import code_of
from fedmuon.config import Link
from fedmuon.randomness import torch_seed

Tensors = dict[str, Tensor]
State = dict[str, Tensors]


def payload(message: Iterable[Mapping[str, Tensor]]) -> int:
    """Bytes of the named tensors of a message, each in its own dtype."""
    return sum(t.numel() * t.element_size() for tensors in message for t in tensors.values())


def memory(state: str) -> str:
    """The name under which the error feedback of a state is kept."""
    return f"error/{state}"


class Channel:
    """One direction of the traffic: `carry` gives what arrives of a state, `bytes` and `bytes_before` a message's size.

    message   the states of a message by name, as examples of their shapes;  buffers travel as they are
    positive  states that must stay above zero (second moments): only bfloat16, whose error is relative, touches them,
              and without error feedback, by which the error of a large value would outweigh a small one after it
    With error feedback (arXiv 1901.09847) any other state travels with what its last messages left out:
    sent = code(t + e), e <- t + e - sent, so that the sum of what was sent and of e is the sum of what was meant.
    """

    def __init__(
        self, direction: str, link: Link, message: State, buffers: Tensors, positive: Sequence[str] = (), seed: int = 0
    ) -> None:
        self.direction, self.seed, self.code, self.feedback = direction, seed, code_of(link), link.error_feedback
        self.positive = positive
        exempt = () if link.method == "bf16" else positive
        chosen = [s for s in message if s not in exempt and (link.states is None or s in link.states)]
        self.coded = {
            state: tuple(name for name, t in message[state].items() if self._size(t) < payload([{name: t}]))
            for state in (chosen if self.code else ())
        }
        self.bytes_before = payload([*message.values(), buffers])
        self.sizes = {state: self._bytes(state, tensors) for state, tensors in message.items()}
        self.bytes = payload([buffers]) + sum(self.sizes.values())

    @property
    def compresses(self) -> bool:
        """Whether any tensor travels in fewer bytes than it has."""
        return any(self.coded.values())

    def draws(self, round: int, device: torch.device, client: int = 0) -> torch.Generator:
        """The random numbers of one message, keyed by what they are for."""
        return torch.Generator(device).manual_seed(torch_seed(self.seed, f"quantize {self.direction}", round, client))

    def carry(self, state: str, tensors: Tensors, errors: State, draws: torch.Generator) -> Tensors:
        """What arrives of one state, [...]; what is left for the next message replaces `errors[memory(state)]`."""
        names, key = self.coded.get(state, ()), memory(state)
        if not names:
            return tensors
        assert self.code is not None
        feedback = self.feedback and state not in self.positive
        before = errors.get(key, {}) if feedback else {}
        meant = {n: tensors[n] + before[n].to(tensors[n].device) if n in before else tensors[n] for n in names}
        sent = {n: self.code.decoded(t, draws) for n, t in meant.items()}
        if feedback:
            errors[key] = {n: meant[n] - sent[n] for n in names}
        return {**tensors, **sent}

    def _size(self, t: Tensor) -> int:
        assert self.code is not None
        return self.code.size(tuple(t.shape), t.element_size())

    def _bytes(self, state: str, tensors: Tensors) -> int:
        coded = self.coded.get(state, ())
        return sum(self._size(t) if name in coded else payload([{name: t}]) for name, t in tensors.items())
