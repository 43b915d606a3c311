"""The trials of `fedmuon-tune`, with Optuna: asked for, run, told, and what came of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from omegaconf import OmegaConf
from optuna.trial import TrialState
from rich.table import Table
from sqlalchemy import URL

from fedmuon import devices, lock, rundir
from fedmuon.apart import computed
from fedmuon.console import console
from fedmuon.errors import UsageError, shown
from fedmuon.experiment import RunFailed, execute
from fedmuon.federation import Federation
from fedmuon.job import Job, identity
from fedmuon.randomness import stream
from fedmuon.server import Rejected
from fedmuon.sweep import Sweep
from fedmuon.tune import Request, Search

_OVER = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


def tune(request: Request) -> int:
    """Run what is left of every search and print what was found; 1 where one has found nothing."""
    for search in () if request.folder.exists() else request.searches:
        config = search.job({}).config
        devices.check(config.trainer.accelerator, config.engine.name)
    rundir.check_name("tune_dir", request.folder.absolute())  # of the study as well
    request.folder.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with lock.held(request.folder), Sweep(request.folder).watched(then=""):
            studies = [_study(search, request) for search in request.searches]
            for search, study in zip(request.searches, studies, strict=True):
                _go_on(study, search, request)
    except lock.Taken as error:
        raise UsageError(f"tune_dir={request.folder}: another fedmuon-tune is at work in it; wait for it") from error
    except RunFailed as error:
        print(f"fedmuon-tune: {error}; the same command goes on with this trial", file=sys.stderr, flush=True)
        return 1
    return _show(request, studies)


def _study(search: Search, request: Request) -> optuna.Study:
    """The study of a search, new or as it was left. Raises UsageError where it is that of another search."""
    job = search.job({})
    evaluation, rounds = job.config.evaluation, job.config.federation.rounds
    study = optuna.create_study(
        storage=URL.create("sqlite", database=str((request.folder / "study.db").absolute())).render_as_string(),
        study_name=search.algorithm,
        direction="maximize" if evaluation.mode == "max" else "minimize",
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=max(1, rounds // 5))
        if request.prune
        else optuna.pruners.NopPruner(),
        load_if_exists=True,
    )
    asked = identity(job.saved) | {f"space of {key}": str(one) for key, one in search.space.items()}
    asked |= {"tune_seed": request.seed, "prune": request.prune}
    made = computed(study.user_attrs.get("asked", {}))
    if not made:
        study.set_user_attr("asked", asked)
    elif other := sorted(k for k in made.keys() | asked.keys() if made.get(k) != asked.get(k)):
        told = ", ".join(f"{key} was {shown(made.get(key))}, now {shown(asked.get(key))}" for key in other[:3])
        raise UsageError(
            f"tune_dir={request.folder}: holds another search of algorithm={search.algorithm} ({told}"
            f"{', and more' * (len(other) > 3)}); name another tune_dir"
        )
    if not study.get_trials(deepcopy=False) and search.start:
        study.enqueue_trial(dict(search.start))  # the configuration as it is comes first
    return study


def _go_on(study: optuna.Study, search: Search, request: Request) -> None:
    for cut_off in study.get_trials(states=(TrialState.RUNNING,)):
        _try(study, optuna.Trial(study, cut_off._trial_id), search, request)
    while len(study.get_trials(deepcopy=False, states=_OVER)) < request.n_trials:
        _try(study, study.ask(), search, request)


def _try(study: optuna.Study, trial: optuna.Trial, search: Search, request: Request) -> None:
    """Run one trial, or what is left of it. One that diverged counts as the worst, not as none.

    Any other fault, and what the environment lacks, ends the search; started again, it goes on with the trial.
    """
    # a sampler a trial: what is suggested is a function of (seed, number, results so far), killed in between or not
    seed = int(stream(request.seed, "tune", trial.number).integers(2**31 - 1))
    study.sampler = optuna.samplers.TPESampler(seed=seed)
    values = {key: one.suggest(trial, key) for key, one in search.space.items()}
    job = search.job(values)
    if "run" in trial.user_attrs:  # of a trial that was cut off, maybe computed elsewhere
        job = replace(job, folder=request.folder / trial.user_attrs["run"])
    assert job.folder is not None
    trial.set_user_attr("values", values)
    trial.set_user_attr("run", job.folder.name)
    told = " ".join(f"{key}={value}" for key, value in values.items())
    print(f"{search.algorithm}: trial {trial.number + 1} of {request.n_trials}: {told}", flush=True)
    try:
        summary = execute(job, callbacks=[Pruning(study, trial, job)]).summary
    except RunFailed as error:
        if not _diverged(error):
            raise
        study.tell(trial, state=TrialState.PRUNED)
        return
    value = (summary.get("best") or {}).get(f"val/{job.config.evaluation.metric}")
    if summary["status"] == "pruned" or value is None:
        study.tell(trial, state=TrialState.PRUNED)
    else:
        study.tell(trial, float(value))


def _diverged(error: BaseException | None) -> bool:
    return error is not None and (isinstance(error, Rejected) or _diverged(error.__cause__))


class Pruning(Callback):
    """Tells a trial the validation metric of every round, and ends its run where the pruner gives it up."""

    status: str | None = None
    cause = "given up by the search: worse than the median of other trials in the same round"

    def __init__(self, study: optuna.Study, trial: optuna.Trial, job: Job) -> None:
        self.trial, self.key = trial, f"val/{job.config.evaluation.metric}"
        self.reported = set(study.trials[trial.number].intermediate_values)
        self.run = job.folder or Path()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take up a trial that was cut off, maybe between its report and its end."""
        asked = [self._report(row) for row in rundir.read(self.run / "metrics.jsonl")]
        if asked and asked[-1]:
            self._decide(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Federation)
        if self._report(pl_module.row):
            self._decide(trainer)

    def _decide(self, trainer: Trainer) -> None:
        if max(self.reported) != trainer.max_epochs and self.trial.should_prune():
            self.status, trainer.should_stop = "pruned", True

    def _report(self, row: Mapping[str, Any]) -> bool:
        """Whether the row's value is the last that the trial has been told, now or before it was cut off."""
        value, round = row.get(self.key), int(row["round"])
        if value is None:
            return False
        if round not in self.reported:
            self.reported.add(round)
            self.trial.report(float(value), round)
        return round == max(self.reported)


def _show(request: Request, studies: list[optuna.Study]) -> int:
    """The table, the commands of the best, best.yaml."""
    screen = console()
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("algorithm", "trials", "pruned", "failed", "val, best", "test then", "(round)", "values"):
        table.add_column(column, overflow="fold")
    best: dict[str, Any] = {}
    for search, study in zip(request.searches, studies, strict=True):
        trials = study.get_trials(states=_OVER)
        status = [rundir.summary(request.folder / t.user_attrs["run"]).get("status") for t in trials]
        counts = [str(len(trials)), str(status.count("pruned")), str(status.count("failed"))]
        if not study.get_trials(states=(TrialState.COMPLETE,)):
            table.add_row(search.algorithm, *counts, "-", "-", "-", "no trial finished")
            continue
        chosen = study.best_trial
        values, run = chosen.user_attrs["values"], request.folder / chosen.user_attrs["run"]
        found, metric = rundir.summary(run)["best"], search.job({}).config.evaluation.metric
        tested = found.get(f"test/{metric}")
        told = "  ".join(f"{key} {value}" for key, value in values.items())
        figures = [f"{chosen.value:.4f}", "-" if tested is None else f"{tested:.4f}", str(found["round"])]
        table.add_row(search.algorithm, *counts, *figures, told)
        best[search.algorithm] = {
            "command": search.command(values),
            "values": {key: OmegaConf.create(f"v: {value}").v for key, value in values.items()},
            "metric": f"val/{metric}",
            "value": chosen.value,
            "round": found["round"],
            "trials": len(trials),
            "run": str(run),
        }
    rundir.write(request.folder / "best.yaml", OmegaConf.to_yaml(OmegaConf.create(best)))
    screen.print(table)
    for one in best.values():
        screen.print(one["command"], highlight=False, soft_wrap=True)
    screen.print(f"{request.folder / 'best.yaml'}  {request.folder / 'sweep.csv'}", highlight=False, soft_wrap=True)
    return 0 if len(best) == len(studies) else 1
