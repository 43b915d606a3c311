"""From plain nodes to typed objects: whatever is wrong, the line begins with its key."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_args, get_type_hints

import pytest

from fedmuon.algorithms.muon import Muon
from fedmuon.algorithms.sgd import SGD
from fedmuon.config import MLP, Config, Data
from fedmuon.errors import UsageError
from fedmuon.typed import typed


def keys(schema: type, path: str = "") -> Iterator[str]:
    hints = get_type_hints(schema)
    for name in (field.name for field in fields(schema)):
        yield f"{path}{name}"
        for inside in filter(is_dataclass, (hints[name], *get_args(hints[name]))):
            yield from keys(inside, f"{path}{name}.")


@pytest.mark.parametrize("schema", [Config, Data, MLP, Muon])
@pytest.mark.parametrize("value", [3, [{"a": 1}], {"a": 1}])
def test_a_value_of_another_kind_is_told_by_its_key(schema: type, value: Any):
    refused = 0
    for key in keys(schema):
        if key.rpartition(".")[2] == "share":  # whose names the rule checks
            continue
        tree = value
        for part in reversed(key.split(".")):
            tree = {part: tree}
        line = told(schema, {"_target_": "x"} | tree if schema in (Data, MLP) else tree)
        assert not line or line.startswith(f"at.{key}"), line
        assert "another kind" not in line and len(line.partition(";")[0]) < 100, line
        refused += bool(line)
    assert refused


def told(schema: type, tree: dict[str, Any]) -> str:
    try:
        typed(schema, tree, "at.")
    except UsageError as error:
        return str(error)
    return ""


def test_a_group_takes_no_value_and_null_only_where_it_may_be_left_out():
    with pytest.raises(UsageError, match=r"^compression\.up=null: is a group of keys, .*; set compression\.up\.m"):
        typed(Config, {"compression": {"up": None}}, "")
    with pytest.raises(UsageError, match=r"^data\.augment=\[1\]: .*data\.augment\.cutout, or null for none$"):
        typed(Data, {"augment": [1]}, "data.")
    assert typed(Data, {"augment": None}, "data.").augment is None


@dataclass(frozen=True)
class Particular(SGD):
    scale: int = 1

    def __post_init__(self) -> None:
        if self.scale != 1:
            raise ValueError("scale must be 1")


def test_what_a_dataclass_of_ones_own_refuses_is_told():
    with pytest.raises(UsageError, match=r"^algorithm: scale must be 1$"):
        typed(Particular, {"scale": 2}, "algorithm.")
