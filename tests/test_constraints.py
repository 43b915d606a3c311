"""Ranges and choices beside the fields they belong to."""

import math
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
from torch import nn

from fedmuon.cli import checked_jobs
from fedmuon.constraints import Bound, bounded, check, choice
from fedmuon.data import partitions
from fedmuon.errors import UsageError, nearest
from fedmuon.models import CNN, LeNet5, ResNet18
from fedmuon.optim.adaptive import Adaptive


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


LABELS = np.arange(9) % 3


@pytest.mark.parametrize(
    ("option", "call", "key", "value"),
    [
        ("partition=dirichlet", partial(partitions.dirichlet, LABELS, 2, seed=0), "concentration", 0.0),
        ("partition=dirichlet", partial(partitions.dirichlet, LABELS, 2, 1.0, 0), "prior", "even"),
        ("partition=dirichlet_classes", partial(partitions.dirichlet_classes, LABELS, 2, 0), "concentration", -1.0),
        ("partition=quantity", partial(partitions.quantity, LABELS, 2, 0), "sigma", -1.0),
        ("partition=feature_shift", partial(partitions.feature_shift, LABELS, 2, 0), "noise", -1.0),
        ("partition=feature_shift", partial(partitions.feature_shift, LABELS, 2, 0), "rotation", 200.0),
        ("partition=iid", partial(partitions.iid, LABELS, 2, 0), "min_size", -1),
        ("model=lenet5", partial(LeNet5, (1, 28, 28), 10), "pool", "maxx"),
        ("model=cnn", partial(CNN, (1, 28, 28), 10), "groups", 0),
        ("model=resnet18", partial(ResNet18, (1, 28, 28), 10), "norm", "publish"),
        ("server=adam", partial(Adaptive, [*nn.Linear(1, 1).parameters()], 0.1), "beta2", 1.0),
        ("server=yogi", partial(Adaptive, [*nn.Linear(1, 1).parameters()], 0.1), "v0", -1.0),
    ],
)
def test_a_wrong_value_is_told_in_python_as_by_the_command(option, call, key, value):
    with pytest.raises(UsageError, match=rf"\.{key}={value}: must be ") as told:
        checked_jobs([option, f"{option.partition('=')[0]}.{key}={value}"])
    for given in (value, np.asarray(value)[()]):  # a number of NumPy's as well
        with pytest.raises(UsageError) as caught:
            call(**{key: given})
        assert str(caught.value) == str(told.value)
