"""Recording the operators of a step once and repeating them: what the task's Python costs is paid once a shape."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import Lock, get_ident
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from fedmuon.engines.generators import seeded

Flat = Sequence[Tensor]
_ENOUGH, _MOST = 20, 64  # calls after which a shape is recorded (about a second of work), and most shapes that are
_AGAIN = {torch.ops.aten.expand.default, torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default}


class Traced:
    """Calls functions of tensors, and repeats their operators where a call comes again. One for all threads.

    how: "none" always calls the function;  "trace" repeats the same operators in the same order, so that results are
    bit-equal;  "inductor" has them compiled. A function must give the same operators whenever `key` is the same.
    """

    def __init__(self, how: str) -> None:
        self.how, self._lock, self._thread = how, Lock(), get_ident()
        self.enough = 0 if how == "inductor" else _ENOUGH  # what is compiled rounds otherwise: from the first step on
        self._calls: Counter[Hashable] = Counter()
        self._recorded: dict[Hashable, tuple[Callable[..., Flat] | None, Any]] = {}

    def __call__(self, key: Hashable, function: Callable[[Flat], tuple[Flat, Any]], given: Flat) -> tuple[Flat, Any]:
        """`function(given)`: tensors, and anything that says what they are, which must be the same for the same key."""
        if key not in self._recorded:
            self._calls[key] += 1
            if self.how == "none" or self._calls[key] <= self.enough or len(self._recorded) >= _MOST:
                return function(given)
            with self._lock, self._draws_given_back():
                if key not in self._recorded:
                    self._recorded[key] = self._record(function, given)
        repeat, meaning = self._recorded[key]
        if repeat is None:
            return function(given)
        with torch.jit.optimized_execution(False):  # which would make a product and a sum of addmm: other bits
            return repeat(*given), meaning

    def _draws_given_back(self) -> AbstractContextManager[None]:
        """Recording runs the function. On other threads nobody draws, and the generators are not to be touched."""
        return seeded(0, torch.device("cpu")) if get_ident() == self._thread else nullcontext()

    def _record(
        self, function: Callable[[Flat], tuple[Flat, Any]], given: Flat
    ) -> tuple[Callable[..., Flat] | None, Any]:
        """None for what cannot be recorded, such as a branch that depends on a value: it is called as it is."""
        meanings: list[Any] = []

        def flat(*tensors: Tensor) -> Flat:
            results, meaning = function(tensors)
            meanings.append(meaning)
            return list(results)

        copies = [t.clone() for t in given]  # recording runs it: what it writes to are copies
        try:
            graph = make_fx(flat)(*copies)
        except Exception:  # of whatever kind: if it is a fault of the task, it shows where the task is called
            return None, None
        _shorten(graph)
        return (_script(graph, copies) if self.how == "trace" else torch.compile(graph, dynamic=False)), meanings[-1]


def _script(graph: GraphModule, given: Flat) -> Callable[..., Flat]:
    """The graph in TorchScript's interpreter: no Python between the operators, and its lock is free for other threads.

    torch calls TorchScript deprecated; where it refuses a graph or is gone, Python goes through the same operators.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return torch.jit.trace(lambda *tensors: tuple(graph(*tensors)), tuple(given), check_trace=False)
        except (RuntimeError, AttributeError):
            return graph.forward


def _shorten(graph: GraphModule) -> None:
    """Drop the views that change nothing, of which vmap makes many."""
    shapes = {node: node.meta["val"].shape for node in graph.graph.nodes if isinstance(node.meta.get("val"), Tensor)}
    for node in list(graph.graph.nodes):
        same = node.target in _AGAIN and node in shapes and shapes.get(node.args[0]) == shapes[node]
        if same:
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.recompile()
