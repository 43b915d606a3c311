"""Going on with a run: its own configuration, and the few keys that may change on the way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from os.path import expanduser
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from fedmuon import selection
from fedmuon.apart import APART, among, flat, gone
from fedmuon.config import CONF
from fedmuon.errors import UsageError, shown, where
from fedmuon.explain import explained
from fedmuon.overrides import keyed
from fedmuon.report.runs import find
from fedmuon.typed import BUILT

# What may differ from the run that is continued: how long, where and how it is watched, never what is computed.
_MAY_CHANGE = (
    *("federation.rounds", "trainer", "callbacks", "data.root"),  # other samples are refused by their checkpoint
    *(key for key in APART if key not in ("run_dir", "resume") and not key.startswith("trainer.")),
)
_NOTHING = object()


def choices(overrides: Sequence[str], config_dir: str | None = None) -> list[str]:
    """The options that the run of a `resume=RUN` override was made with, as overrides for the groups not given anew.

    So `resume=RUN model.hidden=[9]` is read against the run's own model. Raises UsageError where RUN is no run
    directory, and for a key of an option that is not here.
    """
    given = dict(map(keyed, overrides))
    run = given.get("resume", "null").strip("'\"")
    if run in ("", "null"):
        return []
    old = stored(Path(expanduser(run)), "resume=")
    folders = [CONF, *([Path(config_dir)] if config_dir else [])]
    named = {group: str(old[group].name) for group in BUILT if "name" in old[group]}
    here = {g: name for g, name in named.items() if any((f / g / f"{name}.yaml").exists() for f in folders)}
    for one in overrides:
        key, value = keyed(one)
        group = key.partition(".")[0]
        of_it = value == named.get(group) if key == group else not _may_change(key)
        if of_it and group in named.keys() - here.keys():
            check_origin(Path(expanduser(run)), python=False)
            raise UsageError(
                f"{one}: the run in resume={run} has an option of one's own, {group}={named[group]}, and "
                f"{f'--config-dir {config_dir}' if config_dir else 'fedmuon'} has no {group}/{named[group]}.yaml; "
                "give the --config-dir that the run was started with"
            )
    return [f"{group}={name}" for group, name in here.items() if group not in given]


def continued(asked: DictConfig, run: Path, overrides: Sequence[str]) -> DictConfig:
    """The configuration of `run`, with what the command line gives beside `resume`, references resolved in it.

    asked: what the command line makes, its references as they are written. Raises UsageError where `run` is no run
    directory, or a given key is none of a run's or must not change.
    """
    old = stored(run, "resume=")
    keys = {one: _node(keyed(one)[0].replace("/", "."), old) for one in overrides}
    try:
        there = _among(old, asked, keys.values())
    except OmegaConfBaseException as error:
        raise UsageError(explained(error, overrides)) from error
    for one, key in keys.items():
        given, _ = keyed(one)
        if given == "resume":
            continue
        if given == "run_dir" and asked.run_dir is not None:
            raise UsageError(f"run_dir={asked.run_dir}: a resumed run stays in resume={run}; leave run_dir away")
        new, was = (OmegaConf.select(config, key, default=_NOTHING) for config in (there, old))
        if new is was is _NOTHING and not one.startswith("~"):
            raise UsageError(
                f"{one}: is no key of a run, and the one in resume={run} keeps its configuration; {_advice()}"
            )
        if _same(new, was) or (key in (*BUILT, "engine") and _name(new) == _name(was)):
            continue  # the option of a group is what it was; its keys are those of the run
        if fixed := [leaf for leaf in _differing(key, new, was) if not _may_change(leaf)]:
            told = [f"{leaf}={_short(OmegaConf.select(old, leaf))}" for leaf in fixed[:3]]
            raise UsageError(
                f"{given}={_short(new)}: the run in resume={run} belongs to another configuration, {', '.join(told)}"
                f"{' and more' * (len(fixed) > 3)}; {_advice()}"
            )
        if new is _NOTHING:
            parent, _, leaf = key.rpartition(".")
            del (OmegaConf.select(old, parent) if parent else old)[leaf]
        else:
            OmegaConf.update(old, key, new, merge=False, force_add=True)
    old.resume = str(run)
    return old


def check_origin(run: Path, python: bool) -> None:
    """Raise UsageError where a run of `fedmuon.federate` is continued by the command, or the other way round."""
    federated = stored(run, "resume=").model.get("_target_") == "fedmuon.federate"
    if federated and not python:
        raise UsageError(
            f"resume={run}: is a run of fedmuon.federate, whose module and data only Python has; go on there with "
            f"fedmuon.federate(module, train, ..., resume={str(run)!r}), the rest as it was but for rounds="
        )
    if python and not federated:
        raise UsageError(f"resume={run}: is no run of fedmuon.federate; go on with the command, fedmuon resume={run}")


def _among(old: DictConfig, asked: DictConfig, keys: Iterable[str]) -> DictConfig:
    """`old` with the nodes of `asked` at some keys, without those that it has not, references resolved."""
    found, tree = old.copy(), OmegaConf.to_container(asked, resolve=False)
    for key in keys:
        node: Any = tree
        for part in key.split("."):
            node = node.get(part, _NOTHING) if isinstance(node, dict) else _NOTHING
        if node is not _NOTHING:
            OmegaConf.update(found, key, node, merge=False, force_add=True)
        elif OmegaConf.select(found, key, default=_NOTHING) is not _NOTHING:
            parent, _, leaf = key.rpartition(".")
            del (OmegaConf.select(found, parent) if parent else found)[leaf]
    resolved = OmegaConf.create(OmegaConf.to_container(found, resolve=True))
    assert isinstance(resolved, DictConfig)
    if OmegaConf.is_dict(resolved.get("evaluation")):
        selection.settle(resolved.evaluation)
    return resolved


def _same(new: Any, was: Any) -> bool:
    """Whether two values are equal, or one is the text of the other, as of an environment variable."""
    return bool(new == was) or (not OmegaConf.is_config(new) and shown(new) == shown(was))


def _node(key: str, old: DictConfig) -> str:
    """What of the configuration a key stands for: a logger that the run had not comes as a whole, not one key of it."""
    parent = key.rpartition(".")[0]
    return key if not parent or OmegaConf.is_dict(OmegaConf.select(old, parent)) else _node(parent, old)


def _differing(key: str, new: Any, was: Any) -> list[str]:
    """The keys below `key` that differ; itself, where it is no group, or another option of one."""
    if not (OmegaConf.is_dict(new) and OmegaConf.is_dict(was)) or _name(new) != _name(was):
        return [key]
    leaves = [dict(flat(OmegaConf.to_container(node), f"{key}.")) for node in (new, was)]  # type: ignore[arg-type]
    names = list(dict.fromkeys([*leaves[1], *leaves[0]]))
    return [name for name in names if not _same(*(one.get(name, _NOTHING) for one in leaves))]


def _may_change(key: str) -> bool:
    return key != "trainer.precision" and among(key, _MAY_CHANGE)


def _name(node: Any) -> Any:
    return node.get("name") if OmegaConf.is_dict(node) else None


def _advice() -> str:
    return f"leave it away, or start a new run without resume (may change: {', '.join(_MAY_CHANGE)})"


def stored(run: Path, key: str = "") -> DictConfig:
    """The configuration in a run directory. Raises UsageError, which begins with `key`, where there is none."""
    check_run(run, key)
    try:
        config = OmegaConf.load(run / "config.yaml")
        assert isinstance(config, DictConfig) and all(isinstance(config.get(group), DictConfig) for group in BUILT)
        for one in gone(dict(flat(OmegaConf.to_container(config)))):  # type: ignore[arg-type]
            parent, _, leaf = one.rpartition(".")
            del config[parent][leaf]
        return config
    except (OmegaConfBaseException, YAMLError, AssertionError, UnicodeDecodeError) as error:
        advice = "start a new run" if key else "take another run"
        raise UsageError(f"{key}{run}: its config.yaml is damaged ({type(error).__name__}); {advice}") from error


def check_run(run: Path, key: str = "") -> None:
    """Raise UsageError where `run` is no run directory, with what it is, and what to name instead."""
    printed = "name the folder that a run printed at its end"
    if not run.exists():
        raise UsageError(f"{key}{run}: there is no such folder{where(run)}; {printed}")
    if not run.is_dir():
        inside = (run.parent / "config.yaml").is_file()
        raise UsageError(f"{key}{run}: is a file, no run directory; {f'name {run.parent}' if inside else printed}")
    if not (run / "config.yaml").is_file():
        found = list(map(str, islice(find(run), 4)))
        if found and found != [str(run)]:
            some = ", ".join([*found[:3], *["..."] * (len(found) > 3)])
            raise UsageError(f"{key}{run}: is no run directory, but a folder that holds some; name one of them: {some}")
        raise UsageError(f"{key}{run}: is no run directory (it has no config.yaml); {printed}")


def _short(node: object) -> str:
    if isinstance(node, DictConfig):
        return str(node.get("name") or OmegaConf.to_container(node))
    return str(node)
