"""Ranges that a configuration's values must keep, written beside the field they belong to."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from fedmuon.errors import UsageError, nearest


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
        low = "" if self.low == -math.inf else f"{'above' if self.open else 'at least'} {self.low:g}"
        high = "" if self.high == math.inf else f"{'below' if self.open_high else 'at most'} {self.high:g}"
        return "a finite number" + (", " if low or high else "") + " and ".join(part for part in (low, high) if part)


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
    """Raise `UsageError` for the first value in a tree of dataclasses that breaks its field's range or options."""
    for key, value, meta in _walk(node, path):
        bound, options = meta.get("bound"), meta.get("options")
        if bound is not None and not all(map(bound.holds, _numbers(value))):
            each = "each of it " if isinstance(value, list) else ""
            raise UsageError(f"{key}={value}: {each}must be {bound}{_advice(meta)}")
        if options is not None and value not in options:
            words = [{None: "null", True: "true", False: "false"}.get(option, option) for option in options]
            offered = nearest(str(value), words)
            raise UsageError(f"{key}={value}: must be one of {', '.join(words)}{offered}{_advice(meta)}")


def _numbers(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _advice(meta: Any) -> str:
    return f"; {meta['hint']}" if meta.get("hint") else ""


def _walk(node: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    for one in fields(node):
        key, value = f"{path}{one.name}", getattr(node, one.name)
        yield key, value, one.metadata
        if is_dataclass(value):
            yield from _walk(value, f"{key}.")
