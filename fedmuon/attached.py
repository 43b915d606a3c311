"""What is attached to a run, loggers and callbacks: checked before a directory is made."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

from fedmuon.config import Config
from fedmuon.constraints import check as check_ranges
from fedmuon.errors import UsageError, shown
from fedmuon.typed import typed


@dataclass(frozen=True)
class Wandb:
    """`logger=wandb`. entity: the user or team whose project it is; group, name and tags are a sweep's where empty.

    What is left empty is what WANDB_PROJECT, WANDB_NAME and the like say.
    """

    project: str | None = None
    entity: str | None = None
    name: str | None = None
    group: str | None = None
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Keyless:
    """A logger without keys."""


_WANDB = "fedmuon.loggers.wandb"
_MODES = ("online", "offline", "disabled", "shared", "dryrun", "run")  # what W&B takes as WANDB_MODE
_SCHEMAS: dict[str, type] = {
    _WANDB: Wandb,
    "fedmuon.loggers.tensorboard": Keyless,
    "fedmuon.loggers.csv": Keyless,
}
# Packages that Lightning imports once a logger is made, one of which is enough, and what brings one.
_NEEDS = {
    _WANDB: (("wandb",), "wandb"),
    "fedmuon.loggers.tensorboard": (("tensorboard", "tensorboardX"), "'fedmuon[tensorboard]'"),
}
_HYDRAS = ("_target_", "_args_", "_partial_", "_recursive_", "_convert_")


def check(config: Config) -> None:
    """Raise UsageError for the first that is no node, whose package is missing, or, of our own, that has no such key.

    Nothing is imported.
    """
    for key, node in _nodes(config):
        if not isinstance(node, Mapping) or "_target_" not in node:
            raise UsageError(
                f"{key}={shown(node)}: must be a node with a _target_; give it one, or take it away with ~{key}"
            )
        target = str(node["_target_"])
        packages, brings = _NEEDS.get(target, ((), ""))
        if packages and not any(map(_there, packages)):
            raise UsageError(f"{key.replace('.', '=')}: needs {packages[0]}; run: pip install {brings}")
        if target == _WANDB:
            _check_wandb()
        if not _there(package := target.partition(".")[0]):
            raise UsageError(
                f"{key}._target_={target}: there is no package {package!r}; install it or put its folder on PYTHONPATH"
            )
        if schema := _SCHEMAS.get(target):
            values = {str(name): value for name, value in node.items() if name != "_target_"}
            check_ranges(typed(schema, values, f"{key}."), f"{key}.")


def _check_wandb() -> None:
    """What W&B does not take of the environment."""
    mode = os.environ.get("WANDB_MODE")
    if mode and mode not in _MODES:
        raise UsageError(f"WANDB_MODE={mode}: is none of {', '.join(_MODES)}; set one of them, or take another logger")
    try:
        os.getcwd().encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"logger=wandb: the current folder, {os.getcwd()!a}, is no UTF-8, which W&B needs; change to another, "
            "or take another logger, as in logger=none"
        ) from error


def check_calls(config: Config) -> None:
    """Raise UsageError for the first that cannot be called with its keys. Imports them."""
    from hydra.utils import get_object

    for key, node in _nodes(config):
        ours = {"run": Path(), "identity": ""} if key.startswith("logger.") else {}
        given = {str(name): value for name, value in node.items() if name not in _HYDRAS}
        try:
            called = signature(get_object(str(node["_target_"])))
        except Exception as error:
            raise UsageError(f"{key}._target_={node['_target_']}: cannot be used ({error}); name another") from error
        try:
            called.bind(*node.get("_args_", ()), **ours, **given)
        except TypeError as error:
            allowed = ", ".join(name for name in called.parameters if name not in ours)
            raise UsageError(f"{key}: {error}; {node['_target_']} takes {allowed or 'no keys'}") from error


def _nodes(config: Config) -> Iterator[tuple[str, Any]]:
    for group, nodes in (("logger", config.logger), ("callbacks", config.callbacks)):
        for name, node in nodes.items():
            yield f"{group}.{name}", node


def _there(package: str) -> bool:
    try:
        return package in sys.modules or importlib.util.find_spec(package) is not None
    except ValueError:  # an empty name
        return False
