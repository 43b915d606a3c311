"""The `fedmuon` command: check every job first, then run them; heavy imports only once all is known to be right."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, open_dict

from fedmuon import resuming, rundir
from fedmuon.compose import Composer, Job, checked_job, digest
from fedmuon.config import CONF
from fedmuon.errors import UsageError

if TYPE_CHECKING:
    from fedmuon.experiment import Run


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 a run failed, 2 wrong input (one line on standard error), 130 interrupted."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # as for `python -m fedmuon`: own algorithms in the current folder are found
    # a waiting thread sleeps instead of spinning: on a machine that others use as well, spinning costs ten times
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    args = get_args_parser().parse_args()
    if args.multirun and not any(o.startswith("hydra.sweep.dir=") for o in args.overrides):
        # the same sweep, started again, finds its folder and goes on
        args.overrides.append(f"hydra.sweep.dir=outputs/sweep-{digest(sorted(args.overrides))}")
        sys.argv.append(args.overrides[-1])
    asks = (
        args.help,
        args.hydra_help,
        args.cfg,
        args.info,
        args.shell_completion,
        args.experimental_rerun,
        args.config_path,
    )
    jobs: list[Job] = []
    try:
        if not any(asks):
            sys.argv[1:1] = (of_run := resuming.choices(args.overrides, args.config_dir))
            args.overrides[:0] = of_run
            jobs = checked_jobs(args.overrides, args.multirun, args.config_dir, args.config_name)
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(_run_job)()
    except UsageError as error:
        _leave(2, str(error))
    except KeyboardInterrupt as error:
        _leave(130, str(error) or "interrupted")
    if args.multirun and jobs:
        sys.exit(_compare([job.folder for job in jobs if job.folder is not None]))


def checked_jobs(
    overrides: Sequence[str], multirun: bool = False, config_dir: str | None = None, config_name: str | None = None
) -> list[Job]:
    """Every job of a command, checked. Raises UsageError for the first that is wrong, before any has started."""
    composer = Composer(config_dir, config_name)
    if not multirun:
        return [checked_job(composer.compose(overrides))]
    folder, every = composer.expand(overrides)
    return [checked_job(composer.compose(one), folder) for one in every]


def run(overrides: Sequence[str] = (), config_dir: str | None = None) -> Run:
    """Do what the command `fedmuon OVERRIDES...` does: train, and return (summary, path).

    Raises UsageError for wrong input, before any directory is made, and RunFailed for a fault in training.
    """
    (job,) = checked_jobs([*resuming.choices(overrides, config_dir), *overrides], config_dir=config_dir)
    from fedmuon.experiment import execute

    return execute(job)


def _run_job(cfg: DictConfig) -> float:
    """What Hydra calls for each job, in this process or a launcher's; returns the validation metric for sweepers."""
    with open_dict(cfg):
        cfg.hydra = HydraConfig.get()
    sweeping = cfg.hydra.mode == RunMode.MULTIRUN
    job = checked_job(cfg, Path(str(cfg.hydra.sweep.dir)) if sweeping else None)
    from fedmuon.experiment import RunFailed, execute

    try:
        summary, path = execute(_where_it_stopped(job) if sweeping else job)
    except (RunFailed, UsageError) as error:
        if not sweeping:
            _leave(1 if isinstance(error, RunFailed) else 2, str(error))
        print(f"fedmuon: job failed, the others go on: {error}", file=sys.stderr, flush=True)
        return math.nan
    if not sweeping:
        _compare([path])
    metric = job.config.evaluation.metric
    return float((summary["best"] or {}).get(f"val/{metric}", math.nan))


def _where_it_stopped(job: Job) -> Job:
    """A job of a sweep that was started before goes on; one that is finished is only read."""
    assert job.folder is not None
    return replace(job, resume=job.folder) if (job.folder / "config.yaml").exists() else job


def _compare(runs: Sequence[Path]) -> int:
    from fedmuon.report.terminal import show

    show(runs)
    return 0 if all(rundir.summary(run).get("status") == "finished" for run in runs) else 1


def _leave(code: int, message: str) -> None:
    print(f"fedmuon: {message}", file=sys.stderr, flush=True)
    sys.exit(code)
