"""From overrides to a checked configuration. Nothing here imports torch, timm or lightning.

Hydra composes; its errors, and everything that types, ranges and files can tell, come out as one-line `UsageError`s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from json import dumps
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from fedmuon.config import CONF, OWNERS, Config
from fedmuon.errors import UsageError, nearest
from fedmuon.explain import explained
from fedmuon.typed import BUILT, checked, owned


def digest(content: Any) -> str:
    """Six hexadecimal digits of some plain content: short names that differ where the content does."""
    plain = OmegaConf.to_container(content, resolve=True) if OmegaConf.is_config(content) else content
    return sha256(dumps(plain, sort_keys=True, default=str).encode()).hexdigest()[:6]


@dataclass(frozen=True)
class Job:
    """One checked run: the resolved configuration as it is saved, and the same as typed objects.

    resume: the run directory to go on with;  folder: where a job of a sweep belongs.
    """

    saved: DictConfig
    config: Config
    resume: Path | None = None
    folder: Path | None = None


class Composer:
    """Hydra's configuration loader over the packaged `conf/` and, in front of it, a user's own --config-dir."""

    def __init__(self, config_dir: str | None = None, config_name: str | None = None) -> None:
        search_path = create_config_search_path(f"file://{CONF}")
        if config_dir is not None:
            if not Path(config_dir).is_dir():
                raise UsageError(
                    f"--config-dir {config_dir}: there is no such folder; name the one that holds your groups"
                )
            search_path.prepend("command-line", f"file://{Path(config_dir).absolute()}")
        self.hydra = Hydra("fedmuon", ConfigLoaderImpl(search_path))  # beside the global instance, which is not touched
        self.name = config_name or "config"

    def compose(self, overrides: Sequence[str], multirun: bool = False) -> DictConfig:
        """The composed configuration, `hydra` included."""
        mode = RunMode.MULTIRUN if multirun else RunMode.RUN
        try:
            return self.hydra.compose_config(self.name, list(overrides), run_mode=mode, with_log_configuration=False)
        except (HydraException, OmegaConfBaseException, ValueError, TypeError, AttributeError) as error:
            raise UsageError(self._explain(error, overrides)) from error

    def parse(self, overrides: Sequence[str]) -> list[Override]:
        """Parsed overrides. Raises UsageError for the first that is none."""
        parser = OverridesParser.create(self.hydra.config_loader)
        parsed = []
        for one in overrides:
            try:
                parsed += parser.parse_overrides([one])
            except (OverrideParseException, HydraException) as error:
                raise UsageError(
                    f"{one}: is no override; write key=value or group=option, values with special signs in quotes"
                ) from error
        return parsed

    def expand(self, overrides: Sequence[str]) -> tuple[Path, list[list[str]]]:
        """The folder of a sweep and the overrides of its jobs, in the order in which the basic sweeper runs them."""
        from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

        cfg = self.compose(overrides, multirun=True)
        folder = Path(str(cfg.hydra.sweep.dir))
        params = OmegaConf.select(cfg, "hydra.sweeper.params") or {}
        parsed = self.parse([*(f"{key}={value}" for key, value in params.items()), *overrides])
        if "BasicSweeper" not in cfg.hydra.sweeper._target_:
            return folder, [[o.input_line or "" for o in parsed if not o.is_sweep_override()]]
        ours = [o for o in parsed if not (o.key_or_group.startswith("hydra.") or o.key_or_group.startswith("hydra/"))]
        try:
            batches = BasicSweeper.split_arguments(ours, None)
        except HydraException as error:
            raise UsageError(f"{' '.join(overrides)}: {error}; name the values, as key=0.1,0.2") from error
        return folder, [list(job) for batch in batches for job in batch]

    def _explain(self, error: Exception, overrides: Sequence[str]) -> str:
        found = re.search(
            r"Could not (?:override|append|delete) '([^']+)'|[Kk]ey '([^']+)' is not in struct", str(error)
        )
        if found and not isinstance(error, MissingConfigException):
            return self._unknown_key(found[1] or found[2], overrides)
        if "Config group override must be a string or a list" in str(error):
            for one in overrides:
                group, _, option = one.lstrip("+").partition("=")
                options = self.hydra.config_loader.get_group_options(group) if group else []
                if options and option not in options:
                    return f"{one}: no such option; allowed: {', '.join(options)}"
        return explained(error, overrides)

    def _unknown_key(self, key: str, overrides: Sequence[str]) -> str:
        group, _, leaf = key.rpartition(".")
        if group == "trainer" and leaf in OWNERS:
            return owned(leaf)
        given = next((o for o in overrides if o.lstrip("+~").startswith(f"{key}=")), key)
        keys = self._keys([o for o in overrides if o is not given and "=" in o and "." not in o.split("=")[0]])
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
            return [key for key, _ in _flat(OmegaConf.to_container(cfg))]
        return []


def checked_job(cfg: DictConfig, sweep: Path | None = None, given_nodes: Mapping[str, Any] | None = None) -> Job:
    """Check one composed configuration, `hydra` included.

    sweep: the folder of the sweep that the job belongs to;  given_nodes: groups that Python objects stand for.
    """
    from fedmuon import resuming

    choices = {str(group): option for group, option in cfg.hydra.runtime.choices.items()}
    overrides = [str(one) for one in OmegaConf.to_container(cfg.hydra.overrides.task, resolve=False) or ()]
    saved = plain(cfg, choices, overrides)
    for group, node in (given_nodes or {}).items():
        saved[group] = {
            **node,
            **{key: saved[group][key] for key in ("seed", "validation", "client_validation") if key in saved[group]},
        }
    given = {o.lstrip("+~").partition("=")[0]: o.partition("=")[2] for o in overrides}
    if sweep is not None and (saved.run_dir is not None or saved.resume is not None):
        raise UsageError(
            "run_dir, resume: belong to one run; a sweep makes its own folders in hydra.sweep.dir and goes on by itself"
        )
    if all(given.get(f"local.{key}", "null") != "null" for key in ("steps", "epochs")):
        raise UsageError(
            "local.steps and local.epochs: both are given; a client works for one of them, leave the other away"
        )
    source = Path(str(saved.resume)) if saved.resume is not None else None
    if source is not None:
        saved = resuming.continued(saved, source, given)
    folder = sweep / f"{label(saved)}-{digest(identity(saved))}" if sweep is not None else None
    return Job(saved, checked(saved), source, folder)


def label(saved: DictConfig) -> str:
    """A short readable name: algorithm, data, partition, seed."""
    return "-".join([*(str(saved[group].name) for group in ("algorithm", "data", "partition")), f"seed{saved.seed}"])


def identity(saved: DictConfig) -> dict[str, Any]:
    """What makes a run another run: everything but where it is kept and how it is watched."""
    apart = ("run_dir", "resume", "logger", "callbacks", "checkpoint")
    return {
        str(key): OmegaConf.to_container(node) if OmegaConf.is_config(node) else node
        for key, node in saved.items()
        if key not in apart
    }


def plain(cfg: DictConfig, choices: Mapping[str, Any], overrides: Sequence[str]) -> DictConfig:
    """The resolved configuration without `hydra`; every group's node carries the name of its option."""
    cfg = cfg.copy()
    try:
        with open_dict(cfg):
            del cfg["hydra"]
            for group in BUILT:
                if OmegaConf.is_dict(cfg.get(group)):
                    cfg[group].setdefault("name", choices.get(group))
        resolved = OmegaConf.create(OmegaConf.to_container(cfg, resolve=True))
    except OmegaConfBaseException as error:
        raise UsageError(explained(error, overrides)) from error
    assert isinstance(resolved, DictConfig)
    return resolved


def _flat(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield f"{path}{key}", value
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value
