"""Overrides as texts: the key and the value of one, and which of several name a key. Nothing is composed here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString

from fedmuon.apart import flat
from fedmuon.errors import UsageError, shown

_UNUSED = {
    "hydra.run.dir": "a run's folder is made by itself; name it with run_dir=",
    "hydra.sweep.subdir": "a job's folder is named by what it is; hydra.sweep.dir= names the sweep's",
    "hydra.job.chdir": "paths are those of the current folder; leave it away",
}


def keyed(override: str) -> tuple[str, str]:
    """(key, value) of `key=value`, without the + and ~ before the key; an empty value where there is none."""
    key, _, value = override.lstrip("+~").partition("=")
    return key, value


def leaves(overrides: Iterable[str]) -> dict[str, str]:
    """key -> value, as texts, of all that overrides set: of local={steps:3} both local and local.steps."""
    found = {}
    for key, value in map(keyed, overrides):
        found[key] = value
        if value.startswith("{"):
            tree: Any = OverridesParser.create().parse_override(f"{key}={value}").value()
            found |= {str(leaf): shown(one) for leaf, one in flat(tree, f"{key}.")}
    return found


def quoted(text: object) -> str:
    """A text as an override's value, whatever signs are in it."""
    return QuotedString(text=str(text), quote=Quote.single).with_quotes()


def check_hydra(overrides: Iterable[Any]) -> None:
    """Raise UsageError for a key of Hydra's that would have no effect here."""
    for one in map(str, overrides):
        key, value = keyed(one)
        if key in _UNUSED and value not in (".", "false", "null"):
            raise UsageError(f"{one}: {_UNUSED[key]}")


FIXED = "hydra.job.config.override_dirname.exclude_keys"


def fixed_keys(overrides: Sequence[Override]) -> str:
    """An override of Hydra's that tells every job of a sweep, in whatever process, which of its keys do not vary."""
    swept = {keyed(o.get_key_element())[0] for o in overrides if o.is_sweep_override()}
    keys = dict.fromkeys(keyed(o.get_key_element())[0] for o in overrides)
    return f"{FIXED}=[{','.join(repr(key) for key in keys if key not in swept)}]"


def naming(key: str, overrides: Sequence[str]) -> str:
    """The override that names a key, one below it, or above it, as local={lrr: 1} does; empty where none does."""
    name, parts = re.escape(key), key.split(".")
    above = (rf"{re.escape('.'.join(parts[:end]))}=\{{" for end in range(len(parts) - 1, 0, -1))
    heads = (rf"{name}(=|$)", rf"{name}\.", *above)
    return next((one for head in heads for one in overrides if re.match(rf"[+~]*{head}", one)), "")


def choosing(overrides: Sequence[str], key: str) -> list[str]:
    """The overrides that choose what keys there are, without the one that names `key`."""
    named = {one: keyed(one)[0] for one in overrides if "=" in one and one != naming(key, overrides)}
    return [one for one, name in named.items() if "." not in name or name.endswith("._target_")]
