"""One checked run: what is saved of a composed configuration, and built. Nothing here imports torch or lightning."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from json import dumps
from os.path import expanduser
from pathlib import Path
from typing import Any

from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from fedmuon import attached, rundir
from fedmuon.apart import APART, computed, flat
from fedmuon.compose import Composer, Expansion, plain, unresolved
from fedmuon.config import SPLITS, Config
from fedmuon.effects import without_effect
from fedmuon.errors import UsageError
from fedmuon.overrides import FIXED, check_hydra, keyed, leaves
from fedmuon.together import check_new
from fedmuon.typed import checked, settle


def digest(content: Any) -> str:
    """Eight hexadecimal digits of some plain content: short names that differ where the content does."""
    plain = OmegaConf.to_container(content, resolve=True) if OmegaConf.is_config(content) else content
    return sha256(dumps(plain, sort_keys=True, default=str).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Job:
    """One checked run: the resolved configuration as it is saved, and the same as typed objects.

    resume: the run directory to go on with
    folder, name: where a job of a sweep belongs, and the overrides that tell it from the others
    overrides: what it was composed from
    """

    saved: DictConfig
    config: Config
    resume: Path | None = None
    folder: Path | None = None
    name: str | None = None
    overrides: tuple[str, ...] = ()


def checked_job(cfg: DictConfig, sweep: Path | None = None, given_nodes: Mapping[str, Any] | None = None) -> Job:
    """Check one composed configuration, `hydra` included.

    sweep: the folder of the sweep that the job belongs to;  given_nodes: groups that Python objects stand for.
    """
    from fedmuon import resuming

    check_hydra(OmegaConf.to_container(cfg.hydra.overrides.hydra, resolve=False) or ())
    choices = {str(group): option for group, option in cfg.hydra.runtime.choices.items()}
    overrides = [str(one) for one in OmegaConf.to_container(cfg.hydra.overrides.task, resolve=False) or ()]
    asked = unresolved(cfg, choices)
    saved, given = plain(asked, overrides), leaves(overrides)
    if given_nodes:
        checked(saved, environment=False)  # what is kept of the nodes that are replaced has types and ranges too
    for group, node in (given_nodes or {}).items():
        kept = {key: saved[group][key] for key in SPLITS if key in saved[group]}
        saved[group] = {"_target_": "fedmuon.federate", **node, **kept}
    _check_asked(saved, given, alone=sweep is None, sweeps=cfg.hydra.mode == RunMode.MULTIRUN)
    source = None if saved.resume is None else Path(expanduser(saved.resume))
    if source is not None:
        resuming.check_origin(source, python=given_nodes is not None)
        saved = resuming.continued(asked, source, overrides)
    name = folder = None
    if sweep is not None:
        fixed = set(OmegaConf.select(cfg, FIXED) or ())
        name = ",".join(o.lstrip("+") for o in overrides if keyed(o)[0] not in fixed) or None
        _group_in_loggers(saved, sweep.name, name)
    attached.check(config := checked(saved))
    settle(saved, config)
    if sweep is not None:
        folder = sweep / f"{label(saved)}-{digest(identity(saved))}"
    if source is None:
        check_new(config)
        for line in without_effect(config, given).values() if sweep is None else ():
            raise UsageError(line)
    return Job(saved, config, source, folder, name, tuple(overrides))


def checked_sweep(composer: Composer, overrides: Sequence[str]) -> tuple[Expansion, list[Job]]:
    """Every job of a sweep. Raises UsageError for the first that is wrong, and for two that would be the same run."""
    expansion = composer.expand(overrides)
    rundir.usable("hydra.sweep.dir", expansion.folder)
    jobs = [checked_job(composer.compose([*one, expansion.told]), expansion.folder) for one in expansion.jobs]
    names: dict[Path | None, str | None] = {}
    for job in jobs:
        if job.folder in names:
            raise UsageError(
                f"{names[job.folder]} and {job.name}: are the same run twice; leave one of them away "
                f"({', '.join(APART)} and what else says only where and how a run is computed make no other run)"
            )
        names[job.folder] = job.name
    unused = [without_effect(job.config, leaves(job.overrides)) for job in jobs] if expansion.known else []
    for key in unused[0] if unused else ():
        if all(key in one for one in unused):  # where it changes one job, the others are what that is compared with
            raise UsageError(unused[0][key])
    return expansion, jobs


def _check_asked(saved: DictConfig, given: Collection[str], alone: bool, sweeps: bool) -> None:
    """Raise UsageError for the first of the keys of one run that cannot be meant so.

    alone: it is no job of a sweep;  sweeps: hydra.mode asks for one
    """
    if alone and sweeps:
        raise UsageError("hydra.mode=MULTIRUN: asks for a sweep, and this is one run; sweep with fedmuon -m")
    if not alone and (saved.run_dir is not None or saved.resume is not None):
        raise UsageError(
            "run_dir, resume: belong to one run; a sweep makes its own folders in hydra.sweep.dir and goes on by itself"
        )
    if all(f"local.{k}" in given and OmegaConf.select(saved, f"local.{k}") is not None for k in ("steps", "epochs")):
        raise UsageError(
            "local.steps and local.epochs: both are given; a client works for one of them, leave the other away"
        )
    if saved.resume == "":
        raise UsageError("resume=: names no folder; name a run directory, or leave it away")
    for key, value in _leaves(saved).items():
        a_path = key.rpartition(".")[2] in ("run_dir", "resume", "root", "path")
        if a_path and expanduser(str(value)).startswith("~"):
            raise UsageError(f"{key}={value}: begins with a home that is not known; name the whole path")


def _group_in_loggers(saved: DictConfig, sweep: str, name: str | None) -> None:
    """A logger that knows groups, names and tags, such as W&B's, gets the sweep's where none are given."""
    known = {"group": sweep, "name": name, "tags": [str(saved[g].name) for g in ("algorithm", "data", "partition")]}
    for node in saved.logger.values():
        if OmegaConf.is_dict(node):
            node.update({key: value for key, value in known.items() if key in node and not node[key]})


def label(saved: DictConfig) -> str:
    """A short readable name: algorithm, data, partition, seed."""
    names = [str(saved[group].name) for group in ("algorithm", "data", "partition")]
    return "-".join([*names, f"seed{saved.seed}"]).replace("/", "_")  # an option may be in a folder


def identity(saved: DictConfig) -> dict[str, Any]:
    """What makes a run another run, by flat keys: all but where it is computed and kept and how it is watched."""
    return computed(_leaves(saved))


def _leaves(saved: DictConfig) -> dict[str, Any]:
    return dict(flat(OmegaConf.to_container(saved)))  # type: ignore[arg-type]
