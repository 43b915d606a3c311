"""From plain nodes to typed objects: unknown keys, wrong types and ranges are refused here. No torch."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedmuon.config import SCHEMAS, Config
from fedmuon.constraints import check as check_ranges
from fedmuon.errors import UsageError, nearest, shown
from fedmuon.owners import OWNERS
from fedmuon.together import check_together

# Groups whose option names a `_target_`; its parameters are typed by the target's dataclass or by config.SCHEMAS.
BUILT = ("algorithm", "server", "data", "partition", "sampler", "model")


def checked(saved: DictConfig, environment: bool = True) -> Config:
    """The typed configuration. Raises UsageError for unknown keys, wrong types, values out of range.

    environment: check what depends on files and on several values together as well.
    """
    for key in OmegaConf.masked_copy(saved, ["trainer"]).get("trainer") or {}:
        if key in OWNERS:
            raise UsageError(owned(str(key)))
    tree = {str(key): value for key, value in (OmegaConf.to_container(saved) or {}).items()}  # type: ignore[union-attr]
    built = {group: tree.pop(group, None) for group in BUILT}
    config = typed(Config, tree, "")
    nodes = {group: _typed_node(group, node) for group, node in built.items()}
    for group, node in nodes.items():
        object.__setattr__(config, group, node)
    check_ranges(config)
    if environment:
        check_together(config)
    return config


def settle(saved: DictConfig, config: Any) -> None:
    """Write into `saved` the numbers and flags that texts of it stand for, such as ${oc.env:SEED}."""
    for key, value in saved.items():
        found = config.get(key) if isinstance(config, Mapping) else getattr(config, str(key), None)
        if isinstance(value, DictConfig):
            settle(value, found)
        elif value != found and all(
            isinstance(o, int | float) for o in (found if isinstance(found, list) else [found])
        ):
            saved[key] = found


def _typed_node(group: str, node: Any) -> Any:
    """A group's node as an object of its schema; a plain dict where an own target has none."""
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise UsageError(f"{group}={node}: must be a node with a _target_; choose an option of the group {group}")
    schema = _schema(group, node)
    if schema is None:
        return dict(node)
    names = {f.name for f in fields(schema)}
    values = {str(key): value for key, value in node.items() if key not in ("_target_", "name") or key in names}
    return typed(schema, values, f"{group}.")


def _schema(group: str, node: Mapping[str, Any]) -> type | None:
    target = str(node["_target_"])
    return SCHEMAS.get(target) or _dataclass_named(group, target)


def fields_of(tree: Mapping[str, Any]) -> Iterator[str]:
    """The dotted key of every field of a configuration's dataclasses, whether a YAML lists it or not.

    Not the name of a group's option, which follows from the choice.
    """
    yield from _fields(Config, "")
    for group in BUILT:
        node = tree.get(group)
        schema = _schema(group, node) if isinstance(node, Mapping) and "_target_" in node else None
        yield from (key for key in _fields(schema, f"{group}.") if key != f"{group}.name") if schema else ()


def _fields(schema: type, path: str) -> Iterator[str]:
    hints = get_type_hints(schema)
    for name in (f.name for f in fields(schema)):
        yield f"{path}{name}"
        for one in (hints[name], *get_args(hints[name])):
            if is_dataclass(one):
                yield from _fields(one, f"{path}{name}.")  # type: ignore[arg-type]


def _dataclass_named(group: str, target: str) -> type | None:
    """The dataclass a `_target_` names; algorithms must be one, other targets are looked up when they are built."""
    module, _, name = target.rpartition(".")
    try:
        if group != "algorithm":
            if importlib.util.find_spec(module.partition(".")[0]) is None:
                raise ModuleNotFoundError(f"No module named {module!r}")
            return None
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"{group}._target_={target}: cannot be imported ({error}); "
            "install its package or put its folder on PYTHONPATH"
        ) from error
    if not (isinstance(found, type) and is_dataclass(found)):
        raise UsageError(
            f"{group}._target_={target}: must be a frozen dataclass derived from fedmuon.algorithms.Algorithm"
        )
    return found


def typed(schema: type, values: dict[str, Any], path: str) -> Any:
    """Values as an object of a dataclass. Raises UsageError for the first that is wrong, `path` before its key."""
    known = [f.name for f in fields(schema)]
    for key in values:
        if key not in known:
            raise UsageError(
                f"{path}{key}={shown(values[key])}: there is no such key{nearest(key, known)}; "
                f"allowed: {', '.join(known) or 'none'}"
            )
    _check_kinds(schema, values, path)
    try:
        return OmegaConf.to_object(OmegaConf.merge(_writable(OmegaConf.structured(schema)), values))
    except UsageError:
        raise
    except (OmegaConfBaseException, ValueError) as error:  # a ValueError is of the dataclass itself
        raise UsageError(_wrong_type(error, schema, values, path)) from error


def _check_kinds(schema: type, values: Mapping[str, Any], path: str) -> None:
    """What OmegaConf accepts, or refuses without a key: a number for a flag, a value in the place of a group."""
    for name, kind in get_type_hints(schema).items():
        key, value, kinds, optional = f"{path}{name}", values.get(name), _kinds(kind), type(None) in get_args(kind)
        if name not in values or (value is None and optional):
            continue
        group: Any = next(filter(is_dataclass, kinds), None)
        if group is not None and isinstance(value, Mapping):
            _check_kinds(group, value, f"{key}.")
        elif group is not None:
            names = ", ".join(f"{key}.{f.name}" for f in fields(group))
            none = ", or null for none" if optional else ""
            raise UsageError(f"{key}={shown(value)}: is a group of keys, not a value; set {names}{none}")
        elif not any(_may_be(value, one) for one in kinds):
            raise UsageError(f"{key}={shown(value)}: must be {_words(kind)}")


def _may_be(value: Any, kind: Any) -> bool:
    """Whether a value has the form of a type, as far as OmegaConf does not tell."""
    form = get_origin(kind) or kind
    if isinstance(value, Mapping):
        return form is not list
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return form is not dict and not (number and form is bool)


def _writable(node: DictConfig) -> DictConfig:
    """Frozen dataclasses become read-only nodes, which nothing could be merged into."""
    OmegaConf.set_readonly(node, None)
    for key in node:
        if not OmegaConf.is_missing(node, key) and OmegaConf.is_dict(node._get_node(key)):
            _writable(node[key])
    return node


def _wrong_type(error: Exception, schema: type, values: dict[str, Any], path: str) -> str:
    """The line for a value that does not fit its field, found by the key that OmegaConf names."""
    key = getattr(error, "full_key", None) or ""
    if found := re.match(r"Unexpected type annotation: (.*)", str(error)):
        return (
            f"{path}{key}: its type {found[1]} is none of a configuration; for one of a few words write "
            f"{key}: str = choice(DEFAULT, OPTION, ...) with choice of fedmuon.constraints, "
            "else bool, int, float, str, lists of them, or a dataclass"
        )
    if not key:  # it cannot be made at all: by a class that lacks methods, say
        return f"{path.rstrip('.')}: {str(error).split(chr(10))[0]}"
    kind: Any = schema
    value: Any = values
    for part in filter(None, re.split(r"[.\[\]]", key)):
        if part.isdecimal():
            kind, value = _element(kind), value[int(part)] if isinstance(value, list) else value
            continue
        inside = next((one for one in (kind, *get_args(kind)) if isinstance(one, type) and is_dataclass(one)), None)
        hints = get_type_hints(inside) if inside else {}
        if hints and part not in hints:
            given = shown(value.get(part) if isinstance(value, Mapping) else value)
            return f"{path}{key}={given}: there is no such key{nearest(part, hints)}; allowed: {', '.join(hints)}"
        kind = hints.get(part, kind)
        if not isinstance(value, Mapping):
            break
        value = value.get(part)
    return f"{path}{key}={shown(value)}: must be {_words(kind)}"


def _kinds(kind: Any) -> list[Any]:
    """The types that a value may have beside null: those of a union, else the one."""
    return [one for one in get_args(kind) if one is not type(None)] if _is_union(kind) else [kind]


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType)


def _element(kind: Any) -> Any:
    """The type of a list's elements."""
    inside = [arg for arg in get_args(kind) if arg is not type(None)]
    return _element(inside[0]) if _is_union(kind) else (inside[0] if inside else Any)


def _words(kind: Any) -> str:
    plain = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "null"}
    if _is_union(kind):
        args = get_args(kind)
        return " or ".join(_words(one) for one in args if not (one is int and float in args))
    if get_origin(kind) is list:
        return f"a list, each of it {_words(get_args(kind)[0])}: [a,b]"
    if get_origin(kind) is dict:
        return "a group of keys"
    return plain.get(kind, "another kind of value")


def owned(key: str) -> str:
    return f"trainer.{key}: is not set here; use {OWNERS[key]}"
