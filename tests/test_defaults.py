"""One default for one thing: in its YAML, in the schema that types it, and in what its `_target_` names."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter, signature
from itertools import zip_longest
from typing import Any

from hydra.utils import get_object
from omegaconf import OmegaConf

from fedmuon.cli import checked_jobs
from fedmuon.compose import CONF, Composer, plain, unresolved
from fedmuon.config import SCHEMAS, Config
from fedmuon.data.sources import Source
from fedmuon.typed import BUILT

# What differs on purpose, and why.
DIFFERENT = {
    "data/base/images": {"path"},  # composed as data=hub, whose path must be given
    "server/sgd": {"lr"},  # 1 is the clients' average; torch's signature has a rate of gradients
    "algorithm/fedmuon_published": {  # a composition of Muon: what the authors' code adds to the equations
        "beta", "polar.method", "polar.steps", "polar.dtype", "ema", "nesterov", "shape_scale", "lr_scale",
        "weight_decay", "adamw.lr", "adamw.beta2", "adamw.eps", "adamw.weight_decay",
    },
}  # fmt: skip
ALSO = {"fedmuon.data.image_data": Source}  # takes what the target's **arguments are

TARGET = re.compile(r"^\s*_target_: ((?:fedmuon|torch)\..*)$", re.MULTILINE)  # others are documented elsewhere
FILES = {
    str(file.relative_to(CONF).with_suffix("")): found[1]
    for file in sorted(CONF.rglob("*.yaml"))
    if (found := TARGET.search(file.read_text()))
}


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of a mapping or a dataclass, and of what is in it."""
    pairs = tree.items() if isinstance(tree, Mapping) else ((f.name, getattr(tree, f.name)) for f in fields(tree))
    for key, value in pairs:
        if is_dataclass(value) or (isinstance(value, Mapping) and value):
            yield from leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", list(value) if isinstance(value, tuple) else value


def defaults(target: Any) -> dict[str, Any]:
    """The defaults of a dataclass's fields or a function's arguments."""
    if is_dataclass(target):
        made = ((f.name, f.default if f.default_factory is MISSING else f.default_factory()) for f in fields(target))
        return dict(leaves({name: value for name, value in made if value is not MISSING}))
    given = ((name, one.default) for name, one in signature(target).parameters.items())
    return dict(leaves({name: value for name, value in given if value is not Parameter.empty}))


def node(tree: Any, target: str) -> dict[str, Any] | None:
    """The first node of a configuration that names the target."""
    if not isinstance(tree, dict):
        return None
    found = (node(value, target) for value in tree.values())
    return tree if tree.get("_target_") == target else next(filter(None, found), None)


def composed() -> Iterator[tuple[str, dict[str, Any]]]:
    """(file, its node) of every file, one of each group at a time."""
    groups: dict[str, list[str]] = {}
    for file in FILES:
        groups.setdefault(file.partition("/")[0], []).append(file)
    composer = Composer()
    for files in zip_longest(*groups.values()):
        chosen = [file for file in files if file]
        options = ["data=hub" if file == "data/base/images" else "=".join(file.rsplit("/", 1)) for file in chosen]
        tree = OmegaConf.to_container(plain(unresolved(composer.compose(options), {}), options))
        yield from ((file, dict(leaves(node(tree, FILES[file])))) for file in chosen)


def test_a_file_s_defaults_are_those_of_its_schema_and_its_target() -> None:
    found: dict[str, set[str]] = {}
    for file, written in composed():
        target = FILES[file]
        places = [one for one in (get_object(target), SCHEMAS.get(target), ALSO.get(target)) if one is not None]
        sources = [written, *map(defaults, places)]
        for key in {key for one in sources for key in one} - {"_target_", "name"}:
            values = [one[key] for one in sources if key in one]
            if any(value != values[0] for value in values):
                found.setdefault(file, set()).add(key)
    assert found == DIFFERENT


def test_the_defaults_of_the_other_groups_are_those_of_their_schemas() -> None:
    (job,) = checked_jobs([])
    written, schema = dict(leaves(job.config)), dict(leaves(Config()))
    found = {key for key, value in schema.items() if written.get(key, value) != value}
    assert {key for key in found if key.partition(".")[0] not in BUILT} == {"local.lr"}, "which every algorithm sets"
