"""Which parameter goes to which local rule, and as what matrix it is seen."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from rich.table import Table
    from torch import Tensor

    from fedmuon.algorithms.algorithm import Algorithm, Rule


def matrix_view(shape: tuple[int, ...], fused: bool = False) -> tuple[int, ...]:
    """The shape in which a parameter is a matrix, [rows, cols], or a stack of them, [stack, rows, cols].

    Four and more dimensions are [out, rest], as for a convolution; a depthwise one, c x 1 x 3 x 3, is c x 9, whose rows
    are its filters. Three are a stack over the leading one, so that a position embedding 1 x 65 x 192 is one 65 x 192
    matrix. `fused`: a weight [3d, d] of queries, keys and values in one is the stack [3, d, d] of the three.
    """
    view = shape if len(shape) <= 3 else (shape[0], prod(shape[1:]))
    if fused and len(view) == 2 and view[0] == 3 * view[1]:
        return (3, view[1], view[1])
    return view


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern with * and ? is that of a parameter's name, or of its end after a dot.

    So "head.*" finds "network.head.weight" as well: a task puts its own prefix before the names of a network.
    """
    return any(fnmatchcase(name, one) or fnmatchcase(name, f"*.{one}") for one in patterns)


@runtime_checkable
class SeesMatrices(Protocol):
    """A rule that treats a parameter as a matrix, or a stack of them: `matrix` tells its shape; None for no matrix."""

    def matrix(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...] | None: ...


@dataclass(frozen=True)
class Route:
    """One parameter's way: its shape, the matrix that the rule sees ("-" for none), the rule and its base rate."""

    parameter: str
    shape: str
    matrix: str
    rule: str
    lr: float


@dataclass(frozen=True)
class Group:
    """The parameters of one rule, and their base rate (before the schedule)."""

    rule: Rule
    names: tuple[str, ...]
    lr: float


def groups(algorithm: Algorithm, parameters: Mapping[str, Tensor], lr: float) -> tuple[Group, ...]:
    """The parameters of each rule, in the order of the model. `lr` is `local.lr`."""
    members: dict[int, tuple[Rule, list[str]]] = {}
    for name, p in parameters.items():
        rule = algorithm.rule_for(name, tuple(p.shape))
        members.setdefault(id(rule), (rule, []))[1].append(name)
    return tuple(Group(rule, tuple(names), rule.rate(lr)) for rule, names in members.values())


def table(algorithm: Algorithm, parameters: Mapping[str, Tensor], lr: float) -> list[dict[str, Any]]:
    """The routing as rows to print and to save with the run."""
    return [asdict(one) for one in _routes(algorithm, parameters, lr)]


def describe(rows: Sequence[Mapping[str, Any]], most: int = 20) -> Table:
    """Rows of `table` to print: parameters of one rule, rate and matrix share a line, the first `most` are shown."""
    from rich.table import Table

    shown = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for title, right in (("rule", 0), ("rate", 1), ("matrix", 0), ("tensors", 1), ("elements", 1)):
        shown.add_column(title, justify="right" if right else "left", no_wrap=True)
    shown.add_column("parameters", overflow="fold")
    alike: dict[tuple[str, float, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        alike.setdefault((row["rule"], row["lr"], row["matrix"]), []).append(row)
    lines = list(alike.items())
    for (rule, lr, matrix), some in lines[:most]:
        names = _summary([row["parameter"] for row in some])
        shown.add_row(rule, f"{lr:g}", matrix, str(len(some)), f"{_elements(some):,}", names)
    if rest := [row for _, some in lines[most:] for row in some]:
        shown.add_row("...", "", "", str(len(rest)), f"{_elements(rest):,}", "more, all of them in routing.json")
    return shown


def totals(rows: Sequence[Mapping[str, Any]]) -> str:
    """How much of the model each rule has, in one line."""
    parts, total = [], max(1, _elements(rows))
    for rule in dict.fromkeys(row["rule"] for row in rows):
        some = [row for row in rows if row["rule"] == rule]
        parts.append(f"{rule}: {len(some)} tensors, {_elements(some):,} elements ({_elements(some) / total:.1%})")
    return "; ".join(parts)


def _routes(algorithm: Algorithm, parameters: Mapping[str, Tensor], lr: float) -> Iterable[Route]:
    for name, p in parameters.items():
        shape = tuple(p.shape)
        rule = algorithm.rule_for(name, shape)
        view = rule.matrix(name, shape) if isinstance(rule, SeesMatrices) else None
        yield Route(name, _times(shape), _times(view) if view else "-", type(rule).__name__, rule.rate(lr))


def _summary(names: list[str], shown: int = 3) -> str:
    """ "layer*.*.conv*.weight" for names that differ in numbers only; the first few of such patterns."""
    if len(names) == 1:
        return names[0]
    patterns = list(dict.fromkeys(re.sub(r"\d+", "*", name) for name in names))
    return ", ".join(patterns[:shown]) + (f" and {len(patterns) - shown} more" if len(patterns) > shown else "")


def _elements(rows: Iterable[Mapping[str, Any]]) -> int:
    return sum(prod(map(int, re.findall(r"\d+", row["shape"]))) for row in rows)


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "scalar"
