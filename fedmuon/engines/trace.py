"""Recording the operators of a step once and repeating them: what Python costs is paid once a shape."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import Lock, local
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx

from fedmuon.engines.fuse import fuse
from fedmuon.engines.generators import seeded

Flat = Sequence[Tensor]
_ENOUGH, _MOST = 60, 64  # calls after which a shape is recorded, which takes as long as is saved by then; most records
_AGAIN = {torch.ops.aten.expand.default, torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default}
_ALIAS, _TURNS = torch.ops.aten.alias.default, {torch.ops.aten.t.default, torch.ops.aten.transpose.int}


@dataclass(frozen=True)
class _Record:
    """What repeats the operators, None where they cannot be recorded; what the results are; whether one draws."""

    repeat: Callable[[list[Tensor]], Flat] | None = None
    loop: Callable[[Tensor, int, list[Tensor]], object] | None = None
    meaning: Any = None
    draws: bool = True


class Traced:
    """Calls functions of tensors, and repeats their operators where a call comes again. One for all threads.

    how: "none" always calls the function;  "trace" repeats the same operators in the same order, so that results are
    bit-equal;  "fuse" also takes some of them together where that is asked for (`fedmuon.engines.fuse`);  "inductor"
    has them compiled. What rounds otherwise than the function is recorded at its first call, so that a resumed run
    computes as one that was not interrupted.
    refused: told why what came often enough cannot be recorded.
    A function must give the same operators whenever `key` is the same. A call within a call that may be recorded is
    part of that one.
    """

    def __init__(self, how: str, refused: Callable[[Exception], None] = lambda error: None) -> None:
        self.how, self._refused, self._lock = how, refused, Lock()
        self.alone = True  # False with functions on several threads, where nobody draws
        self.enough = _ENOUGH
        self._calls: Counter[Hashable] = Counter()
        self._recorded: dict[Hashable, _Record] = {}
        self._own = local()  # of each thread

    def rounds_otherwise(self, fused: bool) -> bool:
        """Whether the record of a call, which is fused or not, may give other bits than the function."""
        return self.how == "inductor" or (self.how == "fuse" and fused)

    def __call__(
        self, key: Hashable, function: Callable[[Flat], tuple[Flat, Any]], given: Flat, fused: bool = False
    ) -> tuple[Flat, Any]:
        """`function(given)`: tensors, and anything that says what they are, which must be the same for the same key."""
        if getattr(self._own, "inside", False):
            return function(given)
        record = self._recorded.get(key)
        if record is None:
            self._own.inside = True
            try:
                record = self._record_of(key, function, given, fused)
                if record is None:
                    return function(given)
            finally:
                self._own.inside = False
        if record.repeat is None:
            return function(given)
        with torch.jit.optimized_execution(False):  # which would make a product and a sum of addmm: other bits
            return record.repeat(list(given)), record.meaning

    def loop(
        self, key: Hashable, function: Callable[[Flat], tuple[Flat, Any]], each: Tensor, k: int, held: list[Tensor],
        fused: bool = False,
    ) -> None:  # fmt: skip
        """Call the function, which changes tensors in place, with each row, k, k + 1, ... and the tensors `held`.

        fused: if operators are fused at all, these are; calls of one key must agree on it
        """
        for number in range(len(each)):
            record = self._recorded.get(key)
            if record is not None and record.loop is not None:
                with torch.jit.optimized_execution(False):
                    record.loop(each[number:], k + number, held)
                return
            self(key, function, [each[number], torch.tensor(k + number), *held], fused=fused)

    def quiet(self, key: Hashable) -> bool:
        """Whether a call would go through no Python of the function and draw from no generator."""
        record = self._recorded.get(key)
        return record is not None and not record.draws

    def _record_of(
        self, key: Hashable, function: Callable[[Flat], tuple[Flat, Any]], given: Flat, fused: bool
    ) -> _Record | None:
        """The record of a call that has come often enough."""
        self._calls[key] += 1
        rare = self._calls[key] <= self.enough or len(self._recorded) >= _MOST
        if self.how == "none" or (rare and not self.rounds_otherwise(fused)):
            return None
        with self._lock, self._draws_given_back():
            if key not in self._recorded:
                self._recorded[key] = self._record(function, given, fused)
        return self._recorded[key]

    def _draws_given_back(self) -> AbstractContextManager[None]:
        """Recording runs the function; generators that threads share are not to be touched."""
        return seeded(0, torch.device("cpu")) if self.alone else nullcontext()

    def _record(self, function: Callable[[Flat], tuple[Flat, Any]], given: Flat, fused: bool) -> _Record:
        """An empty one for what cannot be recorded, such as a branch that depends on a value: it is called as it is."""
        meanings: list[Any] = []

        def flat(*tensors: Tensor) -> Flat:
            results, meaning = function(tensors)
            meanings.append(meaning)
            return list(results)

        copies = [t.clone() for t in given]  # recording runs it: what it writes to are copies
        try:
            graph = make_fx(flat)(*copies)
        except Exception as error:  # of whatever kind: if it is a fault of the task, it shows where the task is called
            self._refused(error)
            return _Record()
        _shorten(graph)
        if self.how == "fuse" and fused:
            fuse(graph)
        draws = any(map(_draws, graph.graph.nodes))
        if self.how == "inductor":
            compiled = torch.compile(graph, dynamic=False)
            compiled(*copies)  # compiles it here, where no other thread records
            return _Record(*_called(compiled), meanings[-1], draws)
        return _Record(*_scripts(graph, copies), meanings[-1], draws)


def _draws(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


_Calls = tuple[Callable[[list[Tensor]], Flat], Callable[[Tensor, int, list[Tensor]], object]]


def _called(graph: Callable[..., Flat]) -> _Calls:
    """What calls a function of so many tensors once, and in a loop."""

    def loop(each: Tensor, k: int, held: list[Tensor]) -> None:
        for number, row in enumerate(each):
            graph(row, torch.tensor(k + number), *held)

    return lambda given: graph(*given), loop


_LOOP = """
def loop(each: Tensor, k: int, held: List[Tensor]):
    for number in range(len(each)):
        repeat([each[number], torch.tensor(k + number)] + held)
"""


def _scripts(graph: GraphModule, given: list[Tensor]) -> _Calls:
    """The same in TorchScript's interpreter: no Python between the operators, and its lock is free for other threads.

    torch calls TorchScript deprecated; where it refuses a graph or is gone, Python goes through the same operators.
    All is in a unit that the calls own: what `torch.jit.trace` and `torch.jit.script` make never leaves the process.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            unit = torch.jit.CompilationUnit()
            for node in graph.graph.nodes:
                if any(isinstance(arg, Sequence) and True in map(_is_flag, arg) for arg in node.args):
                    _script_alone(node, unit)
            run = Interpreter(graph).run
            operators, _ = torch._C._create_graph_by_tracing(
                lambda tensors: tuple(run(*tensors)), (given,), lambda tensor: "", strict=True, force_outplace=False
            )
            repeat = unit.create_function("repeat", operators)
            unit.define(_LOOP)  # which finds `repeat` here
            return repeat, unit.loop
        except (RuntimeError, AttributeError, TypeError, OSError):
            return _called(graph.forward)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _script_alone(node: Node, unit: torch.jit.CompilationUnit) -> None:
    """A call in a function of its own, with its constants: lists of flags are what a trace cannot hold.

    What nobody uses of its results may be no tensor at all, which a trace cannot hold either.
    """
    schema = node.target._schema  # type: ignore[union-attr]
    names = {arg: f"t{number}" for number, arg in enumerate(arg for arg in node.args if isinstance(arg, Node))}
    given = ", ".join(names[arg] if isinstance(arg, Node) else repr(arg) for arg in node.args)
    used = {user.args[1] for user in node.users}
    results = [f"r{number}" for number in range(len(schema.returns))]
    call = f"call_{node.name}"
    unit.define(f"""
def {call}({", ".join(f"{name}: Tensor" for name in names.values())}):
    {", ".join(results)} = torch.ops.aten.{schema.name.removeprefix("aten::")}({given})
    return {", ".join(one if number in used else "torch.empty([0])" for number, one in enumerate(results))}
""")
    node.target, node.args = getattr(unit, call), tuple(names)


def _shorten(graph: GraphModule) -> None:
    """Drop the views that change nothing, of which vmap and autograd make many."""
    shapes = {node: node.meta["val"].shape for node in graph.graph.nodes if isinstance(node.meta.get("val"), Tensor)}
    for node in list(graph.graph.nodes):
        given = node.args[0] if node.args else None
        same = node.target in _AGAIN and node in shapes and shapes.get(given) == shapes[node]
        if node.target in _TURNS and isinstance(given, Node) and _turn(given) == _turn(node):
            same, given = True, given.args[0]
        if same or node.target == _ALIAS:
            node.replace_all_uses_with(given)
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _turn(node: Node) -> tuple[Any, ...]:
    return node.target, *node.args[1:]
