"""Ranges that a configuration's values must keep, written beside the field they belong to."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass
from numbers import Real
from typing import Any

from fedmuon.errors import UsageError, nearest, shown


@dataclass(frozen=True)
class Bound:
    """low <= value <= high; `open` excludes low itself, `open_high` excludes high."""

    low: float = -math.inf
    high: float = math.inf
    open: bool = False
    open_high: bool = False

    def holds(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        above = value > self.low if self.open else value >= self.low
        return above and (value < self.high if self.open_high else value <= self.high)

    def __str__(self) -> str:
        low = "" if self.low == -math.inf else f"{'above' if self.open else 'at least'} {_written(self.low)}"
        high = "" if self.high == math.inf else f"{'below' if self.open_high else 'at most'} {_written(self.high)}"
        return "a finite number" + (", " if low or high else "") + " and ".join(part for part in (low, high) if part)


def _written(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


def bounded(
    default: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    open: bool = False,
    open_high: bool = False,
    hint: str = "",
) -> Any:
    """A dataclass field whose number must keep a range (None passes where the type allows it)."""
    return field(default=default, metadata={"bound": Bound(low, high, open, open_high), "hint": hint})


def choice(default: Any, *options: Any) -> Any:
    """A dataclass field that takes one of a few words."""
    return field(default=default, metadata={"options": options})


def check(node: Any, path: str = "") -> None:
    """Raise `UsageError` for the first value in a tree of dataclasses that breaks its field's range or options.

    A number without a range must be finite, a text whose default is not empty must hold something.
    """
    for key, value, one in _walk(node, path):
        _check(key, value, one)


def check_fields(schema: type, path: str, /, **values: Any) -> None:
    """As `check`, for arguments of a function that stand for fields of a dataclass."""
    for one in fields(schema):
        if one.name in values:
            _check(f"{path}{one.name}", values[one.name], one)


def _check(key: str, value: Any, one: Field[Any]) -> None:
    options, given = one.metadata.get("options"), f"{key}={shown(value)}"
    bound = one.metadata.get("bound") or Bound()
    if not all(map(bound.holds, _numbers(value))):
        each = "each of it " if isinstance(value, list) else ""
        raise UsageError(f"{given}: {each}must be {bound}{_advice(one.metadata)}")
    if options is not None and value not in options:
        words = [shown(option) for option in options]
        offered = nearest(str(value), words)
        raise UsageError(f"{given}: must be one of {', '.join(words)}{offered}{_advice(one.metadata)}")
    if value == "" and one.default != "" and not one.metadata.get("may_be_empty"):
        raise UsageError(f"{given}: is empty; leave it away, or write {'null' if one.default is None else 'a value'}")


def _numbers(value: Any) -> list[Any]:
    values = value if isinstance(value, list) else [value]
    return [one for one in values if isinstance(one, Real) and not isinstance(one, bool)]


def _advice(meta: Any) -> str:
    return f"; {meta['hint']}" if meta.get("hint") else ""


def _walk(node: Any, path: str) -> Iterator[tuple[str, Any, Field[Any]]]:
    for one in fields(node):
        key, value = f"{path}{one.name}", getattr(node, one.name)
        yield key, value, one
        if is_dataclass(value):
            yield from _walk(value, f"{key}.")
