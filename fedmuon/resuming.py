"""Going on with a run: its own configuration, and the few keys that may change on the way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from fedmuon.config import CONF
from fedmuon.errors import UsageError
from fedmuon.typed import BUILT

# What may differ from the run that is continued: how long, where and how it is watched, never what is computed.
_MAY_CHANGE = (
    "federation.rounds", "data.root", "engine.workers", "trainer", "logger", "callbacks", "checkpoint",
    "evaluation.targets",
)  # fmt: skip


def choices(overrides: Sequence[str], config_dir: str | None = None) -> list[str]:
    """The options that the run of a `resume=RUN` override was made with, as overrides for the groups not given anew.

    So `resume=RUN model.hidden=[9]` is read against the run's own model. Raises UsageError where RUN is no run
    directory.
    """
    given = dict(one.lstrip("+").partition("=")[::2] for one in overrides)
    run = given.get("resume", "null").strip("'\"")
    if run in ("", "null"):
        return []
    old = stored(Path(run))
    folders = [CONF, *([Path(config_dir)] if config_dir else [])]
    named = {group: str(old[group].name) for group in BUILT if group not in given and "name" in old[group]}
    return [f"{g}={name}" for g, name in named.items() if any((f / g / f"{name}.yaml").exists() for f in folders)]


def continued(asked: DictConfig, run: Path, given: Iterable[str]) -> DictConfig:
    """The configuration of `run`, with what the command line gives beside `resume`.

    Raises UsageError where `run` is no run directory, or a given key differs that must not change.
    """
    old = stored(run)
    for key in given:
        if key == "resume":
            continue
        if key == "run_dir":
            raise UsageError(f"run_dir={asked.run_dir}: a resumed run stays in resume={run}; leave run_dir away")
        new, was = OmegaConf.select(asked, key.replace("/", ".")), OmegaConf.select(old, key.replace("/", "."))
        if new == was or (key in BUILT and new.get("name") == was.get("name")):
            continue  # the option of a group is what it was; its keys are those of the run
        allowed = any(key == may or key.startswith(f"{may}.") for may in _MAY_CHANGE)
        if not allowed or key == "trainer.precision":
            raise UsageError(
                f"{key}={_short(new)}: the run in resume={run} belongs to another configuration, {key}={_short(was)}; "
                f"leave it away, or start a new run without resume (may change: {', '.join(_MAY_CHANGE)})"
            )
        OmegaConf.update(old, key, new, merge=False, force_add=True)
    old.resume = str(run)
    return old


def stored(run: Path) -> DictConfig:
    """The configuration in a run directory. Raises UsageError where there is none."""
    path = run / "config.yaml"
    if not path.is_file():
        raise UsageError(
            f"resume={run}: is no run directory (it has no config.yaml); name the folder that a run printed at its end"
        )
    try:
        config = OmegaConf.load(path)
        assert isinstance(config, DictConfig) and all(isinstance(config.get(group), DictConfig) for group in BUILT)
        return config
    except (OmegaConfBaseException, YAMLError, AssertionError, UnicodeDecodeError) as error:
        raise UsageError(
            f"resume={run}: its config.yaml is damaged ({type(error).__name__}); start a new run"
        ) from error


def _short(node: object) -> str:
    if isinstance(node, DictConfig):
        return str(node.get("name") or OmegaConf.to_container(node))
    return str(node)
