"""The `fedmuon` command: check every job first, then run them; heavy imports only once all is known to be right."""

from __future__ import annotations

import math
import os
import reprlib
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from fedmuon import VERSION, devices, resuming, rundir
from fedmuon.apart import APART, among
from fedmuon.command import AGAIN, Parser, command, ending, leave, prepare_process
from fedmuon.compose import Composer
from fedmuon.config import CONF
from fedmuon.errors import UsageError
from fedmuon.job import Job, checked_job, checked_sweep, digest
from fedmuon.overrides import keyed, quoted

if TYPE_CHECKING:
    from fedmuon.experiment import Run
    from fedmuon.sweep import Sweep


_UNNAMED = "outputs/sweep"  # as conf/config.yaml has hydra.sweep.dir


@command("fedmuon")
def main() -> None:
    """Entry point. Exit codes: 0 done, 1 a run failed, 2 wrong input (one line on standard error), 130 interrupted."""
    parser = Parser(prog="fedmuon", parents=[get_args_parser()], conflict_handler="resolve", add_help=False)
    parser.add_argument("--version", action="version", version=VERSION)
    args = parser.parse_intermixed_args()
    options = sys.argv[1:]
    for one in args.overrides:
        options.remove(one)
    if args.config_path:
        raise UsageError(f"--config-path {args.config_path}: would hide all groups; add your own with --config-dir")
    modes = ("run", "multirun", "cfg", "info", "shell_completion")
    if len(given := [f"--{mode.replace('_', '-')}" for mode in modes if getattr(args, mode)]) > 1:
        raise UsageError(f"{', '.join(given)}: each asks for something else; leave all but one away")
    if args.resolve and not (args.cfg or args.help):
        raise UsageError("--resolve: is of --cfg and --help alone; leave it away")
    hydras = hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(_run_job)

    def launch() -> None:
        """Hydra reads the command line itself, and wants all overrides in one place."""
        sys.argv[1:] = [*args.overrides, *options]
        hydras()

    composer = Composer(args.config_dir, args.config_name)
    if any((args.help, args.hydra_help, args.cfg, args.info, args.shell_completion, args.experimental_rerun)):
        if args.cfg or args.info not in (None, "searchpath", "plugins"):
            composer.compose(args.overrides)  # wrong ones are told in one line
            args.overrides = composer.spelled(args.overrides)
        launch()
        return
    if not args.multirun:
        args.overrides[:0] = resuming.choices(args.overrides, args.config_dir)
        args.multirun = composer.compose(args.overrides, multirun=True).hydra.mode == RunMode.MULTIRUN
    if args.multirun:
        try:
            sys.exit(_sweep(args, launch))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(AGAIN) from None
    else:
        checked_job(composer.compose(args.overrides))
        args.overrides = composer.spelled(args.overrides)
        launch()


def checked_jobs(
    overrides: Sequence[str], multirun: bool = False, config_dir: str | None = None, config_name: str | None = None
) -> list[Job]:
    """Every job of a command, checked. Raises UsageError for the first that is wrong, before any has started."""
    composer = Composer(config_dir, config_name)
    if multirun:
        return checked_sweep(composer, overrides)[1]
    return [checked_job(composer.compose(overrides))]


def run(overrides: Sequence[str] = (), config_dir: str | None = None) -> Run:
    """Do what the command `fedmuon OVERRIDES...` does: train, and return (summary, path).

    Raises UsageError for wrong input, before any directory is made, and RunFailed for a fault in training.
    """
    if not isinstance(overrides, list | tuple) or not all(isinstance(one, str) for one in overrides):
        raise UsageError(f"overrides={reprlib.repr(overrides)}: must be a list of texts, as ['model=mlp']")
    (job,) = checked_jobs([*resuming.choices(overrides, config_dir), *overrides], config_dir=config_dir)
    from fedmuon.experiment import execute

    return execute(job)


def _run_job(cfg: DictConfig) -> float:
    """What Hydra calls for each job, in this process or a launcher's; returns the validation metric for sweepers."""
    with open_dict(cfg):
        cfg.hydra = HydraConfig.get()
    if cfg.hydra.mode != RunMode.MULTIRUN:
        return _run_alone(checked_job(cfg))
    folder = Path(str(cfg.hydra.sweep.dir))
    prepare_process()
    if (kind := _launcher(cfg)) in ("joblib", "local"):
        devices.take_share(folder, wait=kind == "local")
    job = checked_job(cfg, folder)
    from fedmuon.experiment import execute

    try:
        return _objective(job, execute(job).summary)
    except Exception as error:
        from fedmuon.sweep import status

        assert job.folder is not None
        if status(job.folder) != "failed":  # else summary.json has the cause, and whoever watches the sweep tells it
            print(f"fedmuon: {error}", file=sys.stderr, flush=True)
        return math.nan


def _run_alone(job: Job) -> float:
    from fedmuon.experiment import RunFailed, execute
    from fedmuon.report.terminal import show

    with ending("fedmuon"):  # Hydra would make a traceback of it
        try:
            summary, path = execute(job)
        except RunFailed as error:
            leave("fedmuon", 1, str(error))
    show([path], job.config.evaluation.metric)
    return _objective(job, summary)


def _objective(job: Job, summary: dict[str, Any]) -> float:
    value = (summary.get("best") or {}).get(f"val/{job.config.evaluation.metric}")
    return math.nan if value is None else float(value)


def _sweep(args: Namespace, launch: Callable[[], None]) -> int:
    """Run what is left of a sweep; the exit code."""
    composer = Composer(args.config_dir, args.config_name)
    cfg = composer.compose(args.overrides, multirun=True)
    if not _names_folder(args, cfg):
        args.overrides.append(f"hydra.sweep.dir={_folder(args)}")
    expansion, jobs = checked_sweep(composer, args.overrides)
    at_once = devices.jobs_at_once(cfg.trainer.accelerator, len(jobs) if expansion.known else devices.cores())
    from fedmuon.sweep import Sweep, status

    if (kind := _launcher(cfg)) != "slurm":  # whose jobs run on other machines
        for job in (one for one in jobs if one.folder and status(one.folder) not in rundir.ENDED):
            devices.check(job.config.trainer.accelerator, job.config.engine.name)
    if kind == "joblib":
        at_once = cfg.hydra.launcher.n_jobs if cfg.hydra.launcher.n_jobs > 0 else at_once
        args.overrides.append(f"hydra.launcher.n_jobs={at_once}")
    # the folder is named for good: what it was composed of, such as the time, may be another in each process
    args.overrides = composer.spelled(args.overrides)
    args.overrides += [expansion.told, f"hydra.sweep.dir={quoted(expansion.folder)}"]
    os.environ[devices.AT_ONCE] = str(at_once)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # faults of a launcher come here, not as a traceback
    sweep = Sweep(expansion.folder, jobs if expansion.known else [], expansion.known)
    with sweep.watched():
        try:
            launch()
        except Exception as error:
            told = " ".join(str(error).split()) or type(error).__name__
            print(f"fedmuon: hydra/launcher={kind} broke off: {told}", file=sys.stderr, flush=True)
            if kind not in ("basic", "slurm"):  # the one is what is left, the other's jobs belong on other machines
                _run_left(sweep, args)
        if kind != "slurm":
            sweep.bury()
    return sweep.end()


def _names_folder(args: Namespace, cfg: DictConfig) -> bool:
    """Whether the command, or a file of one's own, says where a sweep belongs."""
    sweep, keys = cfg.hydra.sweep, [keyed(one)[0] for one in args.overrides]
    return "hydra.sweep.dir" in keys or OmegaConf.is_interpolation(sweep, "dir") or sweep.dir != _UNNAMED


def _folder(args: Namespace) -> str:
    """Where the same sweep, started again with whatever launcher, finds what it has done, and goes on."""
    how = ("hydra/launcher", "hydra.launcher", "hydra.mode")
    keys = {one: keyed(one)[0] for one in args.overrides}
    asked = sorted(one for one, key in keys.items() if not key.startswith(how) and not among(key, APART))
    return f"{_UNNAMED}-{digest([asked, args.config_dir, args.config_name])}"


def _launcher(cfg: DictConfig) -> str:
    """Which launcher runs a sweep: basic, joblib, local or slurm (both of submitit), or the name of another."""
    return str(cfg.hydra.launcher._target_).rpartition(".")[2].removesuffix("Launcher").lower()


def _run_left(sweep: Sweep, args: Namespace) -> None:
    """What a launcher left when it broke off: one job after the other, each in a process of its own that may die."""
    named = {"--config-dir": args.config_dir, "--config-name": args.config_name}
    options = [word for option, value in named.items() if value for word in (option, value)]
    for job in sweep.left:
        overrides = [*job.overrides, f"hydra.sweep.dir={quoted(sweep.folder)}"]
        subprocess.run([sys.executable, "-m", "fedmuon", *options, "-m", *overrides])
        sweep.bury()


if __name__ == "__main__":
    main()
