"""Hydra's and OmegaConf's errors as one line: what was given, what is allowed, what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hydra.errors import MissingConfigException
from omegaconf.errors import MissingMandatoryValue
from yaml import YAMLError

from fedmuon.errors import nearest
from fedmuon.overrides import keyed

_PLUGINS = {
    ("hydra/launcher", "joblib"): "hydra-joblib-launcher",
    ("hydra/launcher", "submitit_local"): "hydra-submitit-launcher",
    ("hydra/launcher", "submitit_slurm"): "hydra-submitit-launcher",
}


class _Case(NamedTuple):
    """One kind of error.

    told   what the error's text says, a pattern whose group is `name`
    finds  the override that it is about, a pattern; `at` is the key that the error names; empty: `name` itself
    line   what to say of that override, whose `key` and `value` these are, and which is `bare` without signs
    ours   whether it must be an override; else, where none is found, the error is of a file, and of a key in it
    """

    told: str
    finds: str
    line: str
    ours: bool = False


_SEVERAL = "is a sweep over several values; run it with fedmuon -m, or write a list as key=[a,b]"
_PLACED = "{key} has its place already; write {bare}"
_MERGED = "(?!)"  # the one that Hydra says it was merging, none else
_GROUP = "is a group of keys, not a value; write {key}.KEY=VALUE"
_CASES = (
    _Case(r"(?:Ambiguous value for argument|Sweep parameters) '(.*)'", "", _SEVERAL),
    _Case(r"An item is already at '(.*?)'", r"^\+{name}=", _PLACED, ours=True),
    _Case(r"(\S+) appears more than once", r"^\+{name}=", _PLACED, ours=True),
    _Case(r"Multiple values for ([^.]+)", r"^\+{name}=", _PLACED, ours=True),
    _Case(r"force-add of config groups is not supported: '(.*)'", "", "++ is for keys, not for groups; write {bare}"),
    _Case(r"Could not delete '(.*)'", "^~{name}$", "{value} is not chosen; leave this away, or give {key}=OPTION"),
    _Case(r"The value of '(.*)' is", "^~{name}=", "{key} is not {value}; leave this away, or give {key}=VALUE"),
    _Case(
        "In '(.*)': .*\n?.*Cannot merge",
        "",
        "has a list in the place of a group of keys, or a group in a list's; correct it",
    ),
    _Case("does not support deletion", _MERGED, "cannot be taken away; give another value instead"),
    _Case(r"Cannot merge .* with ListConfig(?s:.*)=list", _MERGED, "is a list, not a group of keys; write {key}=[a,b]"),
    _Case(r"Cannot merge .* with ListConfig|is not a subclass of", _MERGED, _GROUP),
    _Case(r"node `(\w+)` is not a container", "^[+]*{name}=", _GROUP),
    _Case(r"Missing mandatory value: (\S+)", "", "must be given; write {key}=VALUE"),
    _Case(
        "HydraConfig was not set",
        r"hydra\\?:",
        "has no value here; paths are those of the current folder already, leave ${{hydra:...}} away",
    ),
    _Case(
        "Config group override must be a string or a list",
        r"=(null|\d*|true|false)$",
        "must name an option; write key=value, or group=option; fedmuon --help lists the options",
    ),
    _Case(
        "Environment variable '(.*)' not found",
        "{name}",
        "{name} is not set in the environment; set it, or write ${{oc.env:{name},VALUE}}",
    ),
    _Case(
        r"Unsupported interpolation type (\w+)",
        "{name}",
        "there is no resolver {name!r}; write a value, or ${{KEY}} for that of a key",
    ),
    _Case(
        "nterpolation",
        "^~",
        "cannot be taken away, other keys take values from it; give another option or value instead",
        ours=True,
    ),
    _Case("Recursive interpolation", "^[+]*{at}=", "takes its value from itself; write a value"),
    _Case("Interpolation key '(.*)' not found", "{name}", "there is no key {name!r} to take the value from"),
)


def explained(error: Exception, overrides: Sequence[str]) -> str:
    """The line for an error that arose from `overrides`; its own text on one line where nothing is known of it."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        return _no_option(error.missing_cfg_file, error.options)
    text, cause = str(error), str(error.__cause__ or "")
    key = (re.findall(r"full_key: (\S+)", text) or [""])[0]
    merged = re.search(r"Error merging override (.*)", text)
    for case in _CASES:
        if not (found := re.search(case.told, f"{text}\n{cause}")):
            continue
        name = found[1] if found.re.groups else ""
        if isinstance(error, MissingMandatoryValue):
            name = key or name  # all of it
        one = merged[1] if merged else _found(case.finds.format(name=re.escape(name), at=re.escape(key)), overrides)
        if one := one or ("" if case.ours else name if not case.finds else key or name):
            key, value = keyed(one)
            return f"{one}: {case.line.format(name=name, key=key, value=value, bare=one.lstrip('+'))}"
    if merged:
        said = cause.split("\n")[0].replace("of type 'str' ", "")
        return f"{merged[1]}: {said or 'does not fit its key'}"
    if key:
        return f"{_found(f'^[+]*{re.escape(key)}=', overrides) or key}: {text.split(chr(10))[0]}"
    return " ".join(text.split())


def _found(pattern: str, overrides: Sequence[str]) -> str:
    """The first override that a pattern finds; empty where none is, and for no pattern."""
    return next((one for one in overrides if pattern and re.search(pattern, one)), "")


def _no_option(file: str, allowed: Sequence[str]) -> str:
    group, _, option = file.rpartition("/")
    if package := _PLUGINS.get((group, option)):
        return f"{group}={option}: needs {package}; run: pip install 'fedmuon[sweeps]'"
    return f"{group}={option}: no such option{nearest(option, allowed)}; allowed: {', '.join(sorted(allowed))}"


def no_yaml(error: YAMLError | UnicodeDecodeError, config_dir: str | None) -> str:
    """The line for a file of one's own that cannot be read. Which one holds no text, Python does not say."""
    if isinstance(error, UnicodeDecodeError):
        files = sorted(Path(config_dir or ".").rglob("*.yaml"))
        return f"{next(filter(_no_text, files), config_dir)}: is no text in UTF-8; save it as such"
    mark = getattr(error, "problem_mark", None)
    where = f"{mark.name}:{mark.line + 1}" if mark else getattr(error, "name", config_dir)
    return f"{where}: is no YAML ({getattr(error, 'problem', None) or error}); correct it"


def _no_text(file: Path) -> bool:
    try:
        file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return True
    return False
