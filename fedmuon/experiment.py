"""One run, from a checked configuration to its directory and summary."""

from __future__ import annotations

import logging
import platform
import secrets
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from os.path import expanduser
from pathlib import Path
from typing import Any, NamedTuple

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ProgressBar, Timer
from lightning.pytorch.plugins.environments import LightningEnvironment
from omegaconf import OmegaConf

from fedmuon import attached, devices, lock, loggers, rundir, saved, schedule
from fedmuon.build import Parts, built
from fedmuon.callbacks.checkpoints import AtomicCheckpointIO, checkpoints
from fedmuon.callbacks.progress import RoundProgress
from fedmuon.callbacks.record import Record
from fedmuon.config import Config
from fedmuon.console import console
from fedmuon.data.samples import resembles
from fedmuon.errors import UsageError
from fedmuon.isolation import isolated
from fedmuon.job import Job, label
from fedmuon.optim import routing
from fedmuon.resuming import stored
from fedmuon.store import DiskStore


class Run(NamedTuple):
    """What a run leaves: summary.json as a dict, and its directory."""

    summary: dict[str, Any]
    path: Path


class RunFailed(RuntimeError):
    """A fault during a run; summary.json in `path` has status and cause."""

    def __init__(self, message: str, path: Path) -> None:
        super().__init__(message)
        self.path = path


def execute(job: Job, parts: Callable[[Config, Path | None], Parts] = built, callbacks: Sequence[Callback] = ()) -> Run:
    """Train one run: in job.resume, a sweep's job.folder, run_dir, or a new outputs/<name>-<number>.

    One of `callbacks` that ends it early may say so in its attributes `status` and `cause`.

    A job of a sweep goes on where it stopped, and is only read where it is complete. What only the environment can tell
    is checked before a directory is made; the summary.json of a sweep's job, which has one, tells it. Raises UsageError
    for that, RunFailed for a fault in training, KeyboardInterrupt for an interruption, once summary.json says so.
    """
    with isolated():
        if job.folder is None:
            return _execute(job, parts, callbacks)
        told = f"{job.folder}: runs in another process; waiting for it"
        with lock.held(job.folder, waiting=lambda: print(told, file=sys.stderr, flush=True)):
            try:
                return _execute(replace(job, resume=job.folder if _began(job.folder) else None), parts, callbacks)
            except Exception as error:
                if not isinstance(error, RunFailed):  # a run that fails has said so itself
                    cause = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
                    before = rundir.summary(job.folder)
                    rundir.write_json(job.folder / "summary.json", {**before, "status": "failed", "cause": cause})
                raise


def _execute(job: Job, parts: Callable[[Config, Path | None], Parts], callbacks: Sequence[Callback]) -> Run:
    config, resume = job.config, job.resume
    before = rundir.summary(resume) if resume else {}
    if resume and _complete(before, config):
        if config.federation.rounds < before.get("rounds", 0):
            print(
                f"federation.rounds={config.federation.rounds}: the run in {resume} is complete with "
                f"{before['rounds']} rounds, and stays as it is",
                flush=True,
            )
        chosen = config.evaluation
        return Run(rundir.recounted(resume, before, chosen.metric, chosen.mode, chosen.targets), resume)
    devices.check(config.trainer.accelerator, config.engine.name)
    attached.check_calls(config)
    with ExitStack() as stack:
        if resume and job.folder is None:
            _hold(resume, stack)
        pieces = parts(config, resume)
        checkpoint = _checkpoint(resume, pieces, config.federation.rounds) if resume else None
        path = resume or _directory(job)
        if job.folder is None and not resume:
            _hold(path, stack)
        rundir.tidy(path)
        return _Experiment(job, path, pieces, before.get("id") or secrets.token_hex(4), callbacks).fit(checkpoint)


def _began(run: Path) -> bool:
    return (run / "config.yaml").exists()


def _hold(run: Path, stack: ExitStack) -> None:
    try:
        stack.enter_context(lock.held(run))
    except lock.Taken as error:
        raise UsageError(f"resume={run}: is running in another process; wait for it, or end it first") from error


def _asked(config: Config) -> dict[str, Any]:
    """What ends a run: with the same asked for, one that ended has nothing left to do."""
    return {"rounds": config.federation.rounds, "max_time": config.trainer.max_time}


def _complete(before: dict[str, Any], config: Config) -> bool:
    status, asked, rounds = before.get("status"), before.get("asked") or {}, config.federation.rounds
    if status == "finished" and (before.get("rounds", 0) >= rounds or asked.get("rounds") == rounds):
        return True  # of fewer rounds than it was asked for where a callback stopped it
    return status in rundir.ENDED and asked == _asked(config)


class _Experiment:
    """A run whose directory exists: everything from here on ends in its summary."""

    def __init__(self, job: Job, path: Path, parts: Parts, identity: str, callbacks: Sequence[Callback] = ()) -> None:
        self.callbacks = list(callbacks)
        self.config, self.path, self.parts, self.identity = job.config, path, parts, identity
        self.saved = job.saved.copy()
        self.saved.run_dir = self.saved.resume = None
        self.title = job.name or label(job.saved)
        self.loggers: list[Any] = []
        self.out_of_time = False
        self.start: dict[str, Any] = {
            "status": "running",
            "id": identity,
            "name": label(self.saved),
            **({"protocol": self.config.protocol} if self.config.protocol else {}),
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "asked": _asked(self.config),
            "versions": _versions(),
            "machine": _machine(),
        }
        if self.config.federation.store == "disk":
            parts.federation.store = DiskStore(path / "clients")

    def fit(self, checkpoint: Path | None) -> Run:
        failure: BaseException | None = None
        try:
            if checkpoint is None:  # of a run that ended before its first
                for name in ("metrics.jsonl", "clients.jsonl"):
                    rundir.cut_back(self.path / name, 0)
            self._write_start()
            with _quiet():
                for logger in loggers.built(self.config.logger, self.path, self.identity):
                    self.loggers.append(logger)
                    logger.log_hyperparams(dict(OmegaConf.to_container(self.saved)))  # type: ignore[arg-type]
                trainer = self._trainer()
                trainer.fit(self.parts.federation, ckpt_path=checkpoint, weights_only=False)
            saved.save(self.parts, self.path / "model.safetensors")
            rundir.tabulate_clients(self.path)
            self.out_of_time = _out_of_time(trainer)
        except BaseException as error:
            failure = error
        try:
            summary = self._write_end(failure)
        except OSError as error:  # such as a full disk
            failure = failure or error
        finally:
            loggers.finish(self.loggers, failed=failure is not None)
        if isinstance(failure, Exception):
            raise RunFailed(f"{self.path}: {failure}", self.path) from failure
        if failure is not None:
            raise KeyboardInterrupt(f"interrupted; go on with resume={self.path}") from failure
        return Run(summary, self.path)

    def _trainer(self) -> lightning.Trainer:
        from hydra.utils import instantiate

        config = self.config
        monitor = f"val/{config.evaluation.metric}" if "val" in self.parts.federation.evaluation else None
        callbacks: list[Callback] = [
            Record(self.path, config.evaluation.metric),
            RoundProgress(self.title, config.evaluation.metric),
        ]
        callbacks += [instantiate(node) for node in config.callbacks.values()] + self.callbacks
        callbacks += checkpoints(self.path / "checkpoints", config.checkpoint.every, monitor, config.evaluation.mode)
        given = {key: value for key, value in asdict(config.trainer).items() if value is not None}
        if not self.parts.federation.evaluation:
            given["limit_val_batches"] = 0
        return lightning.Trainer(
            **given,
            devices=1,
            max_epochs=config.federation.rounds,
            callbacks=callbacks,
            logger=self.loggers or False,
            default_root_dir=self.path,
            plugins=[
                AtomicCheckpointIO(),
                LightningEnvironment(),
            ],  # whatever cluster it runs in: one device, one process
            enable_progress_bar=any(isinstance(one, ProgressBar) for one in callbacks),  # one that its user asked for
            enable_model_summary=False,
        )

    def _write_start(self) -> None:
        federation, parts = self.parts.federation, self.parts
        rundir.write(self.path / "config.yaml", OmegaConf.to_yaml(self.saved))
        if not (self.path / "partition.npz").exists():
            parts.partition.save(self.path / "partition.npz", parts.validation, parts.labels, parts.classes)
        routes = routing.table(federation.algorithm, federation.learned(), federation.local.lr)
        rundir.write_json(self.path / "routing.json", routes)
        console().print(routing.describe(routes))
        console().print(routing.totals(routes), highlight=False, soft_wrap=True)
        local = self.config.local
        if said := schedule.remark(local.schedule, local.schedule_rounds, self.config.federation.rounds):
            print(said, flush=True)
        self.start["parameters"] = sum(p.numel() for p in federation.learned().values())
        for ended in ("model.safetensors", "clients.parquet"):
            (self.path / ended).unlink(missing_ok=True)  # of a run that goes on: they are written at its end
        rundir.write_json(self.path / "summary.json", self.start)

    def _write_end(self, failure: BaseException | None) -> dict[str, Any]:
        chosen = self.config.evaluation
        results = rundir.results(rundir.read(self.path / "metrics.jsonl"), chosen.metric, chosen.mode, chosen.targets)
        cause = {"cause": f"{type(failure).__name__}: {failure}"} if isinstance(failure, Exception) else {}
        status = "finished" if failure is None else "failed" if isinstance(failure, Exception) else "interrupted"
        ended = next((one for one in self.callbacks if getattr(one, "status", None) and hasattr(one, "cause")), None)
        if ended is not None and failure is None:
            status, cause = ended.status, {"cause": ended.cause}  # type: ignore[attr-defined]
        elif self.out_of_time:
            status, limit = "timed_out", self.config.trainer.max_time
            done = f"{results['rounds']} of {self.config.federation.rounds} rounds"
            cause = {
                "cause": f"trainer.max_time={limit} was reached after {done}; "
                f"go on with resume={self.path} and a longer trainer.max_time"
            }
        summary = {**self.start, **results, "status": status, **cause}
        rundir.write_json(self.path / "summary.json", summary)
        return summary


def _out_of_time(trainer: lightning.Trainer) -> bool:
    timers = [one for one in trainer.callbacks if isinstance(one, Timer)]  # type: ignore[attr-defined]
    left = [timer.time_remaining() for timer in timers]
    return trainer.current_epoch < (trainer.max_epochs or 0) and any(s is not None and s <= 0 for s in left)


def _directory(job: Job) -> Path:
    if job.folder is not None:
        return job.folder  # its name holds the digest of its configuration: it is nobody else's
    if job.config.run_dir:
        return rundir.claim(Path(expanduser(job.config.run_dir)))
    return rundir.numbered(Path("outputs"), label(job.saved))


def _checkpoint(run: Path, parts: Parts, rounds: int) -> Path | None:
    """last.ckpt of a run; None where it ended before its first, which is said.

    Raises UsageError where it has been removed, for one that does not fit, is of other samples, or has more rounds
    behind it than are asked for.
    """
    path = run / "checkpoints" / "last.ckpt"
    if not path.exists():
        done = max((row["round"] for row in rundir.read(run / "metrics.jsonl")), default=0)
        if (run / "model.safetensors").exists() or done > (OmegaConf.select(stored(run), "checkpoint.every") or 1):
            raise UsageError(
                f"resume={run}: its checkpoints/last.ckpt is missing, and to begin again would overwrite its "
                f"{done} rounds; put it back from a copy, or start a new run in another folder"
            )
        print(f"{run}: has no checkpoint yet, and begins again with its first round", flush=True)
        return None
    try:
        content = torch.load(path, map_location="cpu", weights_only=False)
        found = _shapes(content["state_dict"])
        done = int(content["global_step"])
        content["federation"]["server"]
    except Exception as error:
        raise UsageError(
            f"resume={run}: {path.name} is no checkpoint of a federation ({type(error).__name__}); start a new run"
        ) from error
    if found != _shapes(parts.federation.state_dict()):
        raise UsageError(f"resume={run}: {path.name} is the checkpoint of another model; start a new run")
    sketch = content["federation"].get("data")  # there is none of older versions
    if sketch is not None and not resembles(sketch, parts.federation.sketch):
        raise UsageError(
            f"resume={run}: was trained on other samples than those it is given now (data.root=, in Python train=); "
            "give the same, or start a new run"
        )
    if done > rounds:
        raise UsageError(
            f"federation.rounds={rounds}: the run in resume={run} has {done} rounds behind it; must be at least {done}"
        )
    return path


def _shapes(state: Mapping[str, Any]) -> dict[str, torch.Size]:
    """Of the tensors of a state_dict, which may hold what else a module keeps (`get_extra_state`)."""
    return {name: tensor.shape for name, tensor in state.items() if isinstance(tensor, torch.Tensor)}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("fedmuon", "torch", "torchvision", "lightning", "hydra-core", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _machine() -> str:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else devices.processor()
    return f"{device}, {torch.get_num_threads()} threads"


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Lightning's remarks about what this project does on purpose, such as its own loaders and progress."""
    names = ("lightning.pytorch", "lightning.fabric", "pytorch_lightning")
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for text in (
                ".*does not have many workers.*",
                ".*Checkpoint directory.*exists.*",
                ".*log_every_n_steps.*",
                ".*LeafSpec.*",
                ".*Experiment logs directory.*",  # of a CSV file, which Record fills again
            ):
                warnings.filterwarnings("ignore", text)
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
