"""From overrides to one configuration. Nothing here imports torch, timm or lightning.

Hydra composes; its errors come out as one-line `UsageError`s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from os.path import expanduser
from pathlib import Path
from typing import Any, NamedTuple

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from fedmuon import selection
from fedmuon.config import CONF, Config
from fedmuon.errors import UsageError, nearest, where
from fedmuon.explain import explained, no_yaml
from fedmuon.overrides import check_hydra, choosing, fixed_keys, keyed, leaves, naming, quoted
from fedmuon.owners import OWNERS
from fedmuon.typed import BUILT, fields_of, owned

_SEVERAL = ("logger", "callbacks")  # groups of which several options may be chosen, as logger=[wandb,csv]


class Expansion(NamedTuple):
    """A sweep's folder and the overrides of its jobs.

    known: these are all, no sweeper finds others;  told: an override that tells a job which of its keys do not vary
    """

    folder: Path
    jobs: list[list[str]]
    known: bool
    told: str


class Composer:
    """Hydra's configuration loader over the packaged `conf/` and, in front of it, a user's own --config-dir.

    It takes a key that no YAML lists where a dataclass has it, such as one that a rule of one's own inherits.
    """

    def __init__(self, config_dir: str | None = None, config_name: str | None = None) -> None:
        search_path = create_config_search_path(f"file://{CONF}")
        if config_dir is not None:
            if not Path(config_dir).is_dir():
                raise UsageError(
                    f"--config-dir {config_dir}: there is no such folder{where(config_dir)}; "
                    "name the one that holds your groups"
                )
            search_path.prepend("command-line", f"file://{Path(config_dir).absolute()}")
        self.hydra = Hydra("fedmuon", ConfigLoaderImpl(search_path))  # beside the global instance, which is not touched
        self.name, self.config_dir = config_name or "config", config_dir
        self._unlisted: set[str] = set()  # such keys, as far as they have been met

    def compose(self, overrides: Sequence[str], multirun: bool = False) -> DictConfig:
        """The composed configuration, `hydra` included."""
        mode = RunMode.MULTIRUN if multirun else RunMode.RUN
        if nameless := [one for one in overrides if not keyed(one)[0]]:
            raise UsageError(f"{nameless[0]}: names no key; write key=value or group=option")
        for one in overrides:
            group, option = keyed(one)
            if option.startswith("[") and group not in _SEVERAL and (CONF / group).is_dir():
                options = self.hydra.config_loader.get_group_options(group)
                raise UsageError(f"{one}: takes one option, no list; allowed: {', '.join(options)}")
            _check_none(one, group, option)
        try:
            given = self.spelled(overrides)
            return self.hydra.compose_config(self.name, given, run_mode=mode, with_log_configuration=False)
        except (YAMLError, UnicodeDecodeError) as error:
            raise UsageError(no_yaml(error, self.config_dir)) from error
        except (HydraException, OmegaConfBaseException, ValueError, TypeError, AttributeError) as error:
            key = _unknown(error)
            name = naming(key, overrides).partition("=")[0]
            new = re.fullmatch(r"\w+\.[\w.]+", name) and name not in self._unlisted  # no group, and no + or ~ before it
            if new and key in self._keys(choosing(overrides, key)):
                self._unlisted.add(name)
                return self.compose(overrides, multirun)
            raise UsageError(self._explain(error, overrides)) from error

    def spelled(self, overrides: Sequence[str]) -> list[str]:
        """Overrides as Hydra takes them: ++ before a key that no YAML lists, quotes around paths that begin with ~."""
        given = []
        for one in overrides:
            key, sign, value = one.partition("=")
            if value.startswith("~"):
                value = ",".join(map(quoted, value.split(",")))
            given.append(f"{'++' * (key in self._unlisted)}{key}{sign}{value}")
        return given

    def parse(self, overrides: Sequence[str]) -> list[Override]:
        """Parsed overrides. Raises UsageError for the first that is none."""
        parser = OverridesParser.create(self.hydra.config_loader)
        parsed = []
        for one in overrides:
            try:
                parsed += parser.parse_overrides(self.spelled([one]))
            except (OverrideParseException, HydraException) as error:
                raise UsageError(
                    f"{one}: is no override; write key=value or group=option, values with special signs in quotes"
                ) from error
        return parsed

    def expand(self, overrides: Sequence[str]) -> Expansion:
        """The jobs of a sweep, in the order in which the basic sweeper runs them.

        Raises UsageError where there is none, or a sweep that the basic sweeper does not know.
        """
        from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

        cfg = self.compose(overrides, multirun=True)
        check_hydra(overrides)
        try:
            named = str(cfg.hydra.sweep.dir)
        except OmegaConfBaseException as error:
            raise UsageError(explained(error, overrides)) from error
        if not named:
            raise UsageError("hydra.sweep.dir=: names no folder; leave it away, or name one for the sweep")
        params = OmegaConf.select(cfg, "hydra.sweeper.params") or {}
        parsed = self.parse([*(f"{key}={value}" for key, value in params.items()), *overrides])
        number = [o for o in parsed if o.key_or_group == "hydra.sweep.dir" and isinstance(o.value(), int | float)]
        written = keyed(number[-1].input_line)[1] if number and number[-1].input_line else named
        folder = Path(expanduser(written))
        ours = [o for o in parsed if not o.key_or_group.startswith(("hydra.", "hydra/"))]
        told = fixed_keys(ours)
        if "BasicSweeper" not in cfg.hydra.sweeper._target_:
            return Expansion(folder, [[o.input_line or "" for o in parsed if not o.is_sweep_override()]], False, told)
        for one in filter(Override.is_sweep_override, ours):
            if not one.is_discrete_sweep():
                raise UsageError(f"{one.input_line}: is a range without single values; name them, as key=0.1,0.2")
            if not list(one.sweep_string_iterator()):
                raise UsageError(f"{one.input_line}: holds no value, and the sweep no job; name at least one")
        (jobs,) = BasicSweeper.split_arguments(ours, None)
        return Expansion(folder, [list(job) for job in jobs], True, told)

    def _explain(self, error: Exception, overrides: Sequence[str]) -> str:
        try:
            self.parse(overrides)
        except UsageError as wrong:
            return str(wrong)
        text, missing = str(error), getattr(error, "missing_cfg_file", None)
        if missing and (file := Path(self.config_dir or "", f"{missing}.yml")).is_file():
            return f"{'='.join(missing.rsplit('/', 1))}: only files that end in .yaml are read; rename {file}"
        if key := _unknown(error):
            return self._unknown_key(key, overrides)
        if found := re.search(r"Could not load '([\w/]+)/([^'/]+)'", text):  # one of a list of options
            return self._unknown_option(found[1], found[2], overrides)
        if "Config group override must be a string or a list" in text or isinstance(error, TypeError):
            for one in overrides:
                group, option = keyed(one)
                options = self.hydra.config_loader.get_group_options(group) if group else []
                if options and option not in options and not all(o in options for o in re.findall(r"[\w./]+", option)):
                    return f"{one}: no such option; allowed: {', '.join(options)}"
        return explained(error, overrides)

    def _unknown_option(self, group: str, option: str, overrides: Sequence[str]) -> str:
        options = sorted(self.hydra.config_loader.get_group_options(group))
        given = next((one for one in overrides if keyed(one)[0] == group), f"{group}={option}")
        return f"{given}: no such option {option!r}{nearest(option, options)}; allowed: {', '.join(options)}"

    def _unknown_key(self, key: str, overrides: Sequence[str]) -> str:
        group, _, leaf = key.rpartition(".")
        if group == "trainer" and leaf in OWNERS:
            return owned(leaf)
        given = naming(key, overrides) or key
        keys = self._keys(choosing(overrides, key))
        away = (o for o in overrides if o.startswith("~") and f"{key}.".startswith(f"{keyed(o)[0]}."))
        if key in keys and (taken := next(away, "")):
            why = "is null already; leave it away"
            return f"{taken}: {why if taken == given else f'takes away what {given} sets; leave one of them away'}"
        if key in keys:
            return f"{given}: no YAML lists {key!r}; write {key}=VALUE by itself"
        offered = nearest(key, keys) or nearest(leaf, [k.rpartition(".")[2] for k in keys])
        beside = [k.rpartition(".")[2] for k in keys if k.rpartition(".")[0] == group]
        allowed = f"; {group or 'at the top'} has {', '.join(beside)}" if beside and len(beside) < 40 else ""
        return f"{given}: there is no key {key!r}{offered}{allowed}"

    def _keys(self, overrides: Sequence[str]) -> list[str]:
        for these in (list(overrides), []):
            try:
                cfg = self.hydra.compose_config(self.name, these, run_mode=RunMode.RUN, with_log_configuration=False)
            except (HydraException, OmegaConfBaseException):
                continue
            with open_dict(cfg):
                del cfg["hydra"]
            tree: Any = OmegaConf.to_container(cfg)
            return list(dict.fromkeys([*(key for key, _ in _flat(tree)), *fields_of(tree)]))
        return []


def _check_none(one: str, group: str, option: str) -> None:
    """Raise UsageError where a list of options holds none and another one."""
    named = re.findall(r"[\w./]+", option) if group in _SEVERAL and re.fullmatch(r"\[[^][]*\]", option) else []
    if "none" in named and len(named) > 1:
        others = [name for name in dict.fromkeys(named) if name != "none"]
        instead = f"[{','.join(others)}]" if len(others) > 1 else "".join(others) or "none"
        raise UsageError(f"{one}: none goes with no other; write {group}={instead}, or {group}=none")


def unresolved(cfg: DictConfig, choices: Mapping[str, Any]) -> DictConfig:
    """The configuration without `hydra`; every group's node carries the name of its option."""
    cfg = cfg.copy()
    with open_dict(cfg):
        del cfg["hydra"]
        for group in BUILT:
            if OmegaConf.is_dict(cfg.get(group)):
                cfg[group].setdefault("name", choices.get(group))
    for group in choices.keys() & cfg.keys() - Config.__dataclass_fields__.keys():
        raise UsageError(f"{group}={choices[group]}: its file must begin with the line '# @package _global_'")
    return cfg


def plain(cfg: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """The configuration with every reference resolved, folders as they are written, and what the metric's name says.

    Raises UsageError where a run that begins lacks a value, and where it is not known which way its metric is better.
    """
    cfg = cfg.copy()
    try:
        with open_dict(cfg):
            if OmegaConf.is_dict(chosen := cfg.get("evaluation")):
                selection.settle(chosen)
        whole = cfg.get("resume") is None  # else the run has what is missing
        resolved = OmegaConf.create(OmegaConf.to_container(cfg, resolve=True, throw_on_missing=whole))
    except OmegaConfBaseException as error:
        raise UsageError(explained(error, overrides)) from error
    assert isinstance(resolved, DictConfig)
    for key in ("run_dir", "resume"):
        if isinstance(resolved.get(key), int | float):  # as Hydra reads 2024_01_15
            resolved[key] = leaves(overrides).get(key, str(resolved[key]))
    if whole and OmegaConf.is_dict(chosen := resolved.get("evaluation")):
        selection.check(str(chosen.get("metric")), chosen.get("mode"))
    return resolved


def _unknown(error: Exception) -> str:
    """The key that Hydra or OmegaConf does not know; empty where the error is another one."""
    text = str(error)
    could_not = r"Could not (?:override|append|delete from config\.) '([^']+)'"
    found = re.search(rf"{could_not}|[Kk]ey '([^']+)' is not in struct", text)
    if not found or isinstance(error, MissingConfigException):
        return ""
    whole = re.search(r"is not in struct\s+full_key: (\S+)", f"{text}\n{error.__cause__}")
    return whole[1] if whole else found[1] or found[2]


def _flat(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield f"{path}{key}", value
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value
