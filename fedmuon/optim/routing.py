"""Which parameter goes to which local rule, and as what matrix it is seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from fedmuon.algorithms.algorithm import Algorithm, Rule


def matrix_view(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in which a parameter is a matrix, [rows, cols], or a stack of them, [stack, rows, cols].

    Four and more dimensions are [out, rest], as for a convolution; three are a stack over the leading one, so that a
    position embedding 1 x 65 x 192 is one 65 x 192 matrix.
    """
    if len(shape) <= 3:
        return shape
    rest = 1
    for size in shape[1:]:
        rest *= size
    return (shape[0], rest)


@dataclass(frozen=True)
class Route:
    """One parameter's way: its shape, the matrix it is seen as ("-" for none), the rule and the rule's base rate."""

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


def _routes(algorithm: Algorithm, parameters: Mapping[str, Tensor], lr: float) -> Iterable[Route]:
    for name, p in parameters.items():
        shape = tuple(p.shape)
        rule = algorithm.rule_for(name, shape)
        matrix = _times(matrix_view(shape)) if len(shape) >= 2 else "-"
        yield Route(name, _times(shape), matrix, type(rule).__name__, rule.rate(lr))


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "scalar"
