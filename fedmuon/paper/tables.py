"""The tables as data: what tables.yaml says, as sweeps of Hydra overrides for a protocol."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from fedmuon.errors import UsageError, nearest
from fedmuon.overrides import keyed

PROTOCOLS = ("published", "clean")
_FILE = Path(__file__).with_name("tables.yaml")


@dataclass(frozen=True)
class Group:
    """Cells that are one Hydra sweep a protocol. `vary`: protocol -> overrides with values separated by commas."""

    name: str
    model: str
    concentration: float | None
    partition: tuple[str, ...]
    overrides: tuple[str, ...]
    vary: dict[str, tuple[str, ...]]
    keys: dict[str, tuple[str, ...]]  # protocol -> what tells its rows apart, also where only one of them is asked for
    default: tuple[str, ...]  # the protocols it runs under where none is asked for
    quick: tuple[str, ...] | None  # what --quick replaces; None: not a part of it


@dataclass(frozen=True)
class Table:
    """One table. `seeds`: at most so many, None: as many as asked for."""

    name: str
    title: str
    overrides: tuple[str, ...]
    seeds: int | None
    groups: tuple[Group, ...]

    @property
    def protocols(self) -> tuple[str, ...]:
        """Those it has cells for."""
        return tuple(p for p in PROTOCOLS if any(p in group.vary for group in self.groups))


@dataclass(frozen=True)
class Sweep:
    """One Hydra sweep: overrides without seeds, values separated by commas."""

    table: str
    protocol: str
    group: str
    model: str
    overrides: tuple[str, ...]
    keys: tuple[str, ...] = ()  # of overrides that belong to a row even with one value
    quick: bool = False

    @property
    def title(self) -> str:
        """The cell as tables call it: --quick has another model."""
        return self.group.replace("resnet18", self.model) if self.quick else self.group


@dataclass(frozen=True)
class Setting:
    """Where and how cells run: what a user gives beside the table.

    data, lists: folders of CIFAR-100 and of the authors' index lists; rounds, device: None keeps the protocol's;
    extra: any overrides, which come last.
    """

    quick: bool = False
    data: str | None = None
    lists: str | None = None
    rounds: int | None = None
    device: str | None = None
    extra: tuple[str, ...] = ()


@cache
def tables() -> dict[str, Table]:
    """Every table by name."""
    return {name: _table(name, node) for name, node in _content()["tables"].items()}


def title_of(algorithm: str) -> str:
    """A method as the tables call it: FedMuon for fedmuon and fedmuon_published."""
    method = method_of(algorithm)
    return str(_content()["names"].get(method, method))


def method_of(algorithm: str) -> str:
    """The method of an algorithm, whichever protocol's preset it is."""
    return algorithm.removesuffix("_published")


def chosen(
    table: Table, protocol: str, asked: bool = True, cells: Sequence[str] = (), methods: Sequence[str] = ()
) -> list[Group]:
    """The groups of a table under a protocol, of them those of `cells`, with `methods` only; empty takes all.

    asked: False leaves out what runs under this protocol only on demand. Raises UsageError for a cell or a method that
    the table has not.
    """
    _known("--cells", cells, [group.name for group in table.groups])
    groups = [group for group in table.groups if protocol in (group.vary if asked else group.default)]
    groups = [group for group in groups if not cells or group.name in cells]
    if not methods:
        return groups
    there = {method_of(a) for group in table.groups for vary in group.vary.values() for a in _algorithms(vary)}
    _known("--methods", methods, sorted(there))
    kept = []
    for group in groups:
        if vary := _with_methods(group.vary[protocol], methods):
            quick = (_with_methods(group.quick, methods) or None) if group.quick else group.quick
            kept.append(Group(**{**vars(group), "vary": {protocol: vary}, "quick": quick}))
    return kept


def sweep(table: Table, group: Group, protocol: str, setting: Setting) -> Sweep:
    """The overrides of a group. Raises UsageError where the published lists are needed and not given."""
    overrides = merged(
        [f"paper={protocol}", f"model={group.model}", "logger=none"],
        [] if setting.data is None or setting.quick else [f"data.root={setting.data}"],
        _partition(group, protocol, setting),
        _content()["quick"] if setting.quick else (),
        table.overrides,
        group.overrides,
        [_filled(one, protocol) for one in group.vary[protocol]],
        (group.quick or ()) if setting.quick else (),
        [] if setting.rounds is None else [f"federation.rounds={setting.rounds}"],
        [] if setting.device is None else [f"trainer.accelerator={setting.device}"],
        setting.extra,
    )
    model = "mlp" if setting.quick else group.model
    return Sweep(table.name, protocol, group.name, model, tuple(overrides), group.keys[protocol], setting.quick)


def rows_of(sweep: Sweep) -> list[tuple[str, ...]]:
    """The rows of a sweep, each as the values that tell it from others, in the order in which Hydra runs them."""
    given = [keyed(one)[0] for one in sweep.overrides]
    options = [[f"{key}={value}" for value in values_of(one)] for key, one in zip(given, sweep.overrides, strict=True)]
    pairs = zip(given, options, strict=True)
    return list(product(*(some for key, some in pairs if len(some) > 1 or key in sweep.keys)))


def values_of(override: str) -> list[str]:
    """The values of an override that sweeps: those between commas outside brackets."""
    return re.findall(r"(?:[^,\[\]{}()]|\[.*?\]|\{.*?\}|\(.*?\))+", keyed(override)[1])


def merged(*parts: Iterable[str]) -> list[str]:
    """All overrides; of those with one key the last, at the place of the first."""
    found: dict[str, str] = {}
    for one in (one for part in parts for one in part):
        found[keyed(one)[0]] = one
    return list(found.values())


def _partition(group: Group, protocol: str, setting: Setting) -> list[str]:
    if group.partition:
        return list(group.partition)
    if protocol == "clean" or setting.quick:
        return ["partition=dirichlet", f"partition.concentration={group.concentration}"]
    if setting.lists is None:
        raise UsageError(
            f"--lists: the published protocol needs the authors' index lists; name the folder that holds "
            f"cifar100-dirichlet{group.concentration}-100x500.npz, or take --protocol clean or --quick"
        )
    return [f"partition.path={setting.lists}/cifar100-dirichlet{group.concentration}-100x500.npz"]


def _filled(override: str, protocol: str) -> str:
    suffix = "_published" if protocol == "published" else ""
    return override.replace("{fedmuon}", f"fedmuon{suffix}").replace("{local_muon}", f"local_muon{suffix}")


def _algorithms(vary: Iterable[str]) -> list[str]:
    return [name.strip("{}") for key, values in map(keyed, vary) if key == "algorithm" for name in values.split(",")]


def _with_methods(vary: Sequence[str], methods: Sequence[str]) -> tuple[str, ...]:
    """The same overrides with some of the algorithms; nothing where none of them is left."""
    kept = []
    for one in vary:
        key, values = keyed(one)
        if key == "algorithm":
            names = [name for name in values.split(",") if method_of(name.strip("{}")) in methods]
            if not names:
                return ()
            one = f"algorithm={','.join(names)}"
        kept.append(one)
    return tuple(kept)


def _known(option: str, given: Iterable[str], known: Sequence[str]) -> None:
    for one in given:
        if one not in known:
            raise UsageError(f"{option} {one}: is not in this table{nearest(one, known)}; allowed: {', '.join(known)}")


@cache
def _content() -> dict[str, Any]:
    return yaml.safe_load(_FILE.read_text(encoding="utf-8"))


def _table(name: str, node: dict[str, Any]) -> Table:
    groups = tuple(_group(one) for one in node["groups"])
    return Table(name, node["title"], tuple(node.get("overrides", ())), node.get("seeds"), groups)


def _group(node: dict[str, Any]) -> Group:
    both = {protocol: tuple(node["vary"]) for protocol in PROTOCOLS} if "vary" in node else {}
    quick = node.get("quick", ())
    vary = {**both, **{p: tuple(node[p]) for p in PROTOCOLS if p in node}}
    return Group(
        name=str(node["name"]),
        model=node.get("model", "resnet18"),
        concentration=node.get("concentration"),
        partition=tuple(node.get("partition", ())),
        overrides=tuple(node.get("overrides", ())),
        vary=vary,
        keys={protocol: tuple(_varying((*own, *(quick or ())))) for protocol, own in vary.items()},
        default=("clean",) if both else tuple(p for p in PROTOCOLS if p in node),
        quick=None if quick is False else tuple(quick),
    )


def _varying(overrides: Iterable[str]) -> list[str]:
    return [keyed(one)[0] for one in overrides if len(values_of(one)) > 1]
