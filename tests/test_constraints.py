"""Ranges and choices beside the fields they belong to."""

import math
from dataclasses import dataclass, field

import pytest

from fedmuon.constraints import Bound, bounded, check, choice
from fedmuon.errors import UsageError, nearest


@dataclass
class Inner:
    beta: float = bounded(0.5, low=0, high=1, open_high=True, hint="0.9 is usual")
    kind: str | None = choice(None, None, "left", "right")


@dataclass
class Outer:
    count: int | None = bounded(1, low=1)
    inner: Inner = field(default_factory=Inner)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_bound_takes_what_is_not_finite(value):
    assert not Bound().holds(value)


def test_ends_are_in_unless_open():
    assert Bound(0, 1).holds(0) and Bound(0, 1).holds(1)
    assert not Bound(0, 1, open=True).holds(0) and not Bound(0, 1, open_high=True).holds(1)


def test_the_first_wrong_value_is_named_with_its_path():
    check(Outer())
    check(Outer(count=None, inner=Inner(kind="left")))
    with pytest.raises(UsageError, match=r"^count=0: must be a finite number, at least 1$"):
        check(Outer(count=0, inner=Inner(beta=7)))
    with pytest.raises(UsageError, match=r"^node\.inner\.beta=1: must be .*at least 0 and below 1; 0\.9 is usual$"):
        check(Outer(inner=Inner(beta=1)), "node.")
    with pytest.raises(
        UsageError, match=r"^inner\.kind=lift: must be one of null, left, right \(did you mean 'left'\?\)$"
    ):
        check(Outer(inner=Inner(kind="lift")))


def test_an_error_is_one_line():
    assert str(UsageError("a\n  b\t c")) == "a b c"
    assert nearest("lenet", ["lenet5", "mlp"]) == " (did you mean 'lenet5'?)" and nearest("xyz", ["lenet5"]) == ""
