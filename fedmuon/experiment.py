"""One run, from a checked configuration to its directory and summary."""

from __future__ import annotations

import logging
import platform
import secrets
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from omegaconf import OmegaConf
from rich.console import Console

from fedmuon import loggers, rundir, saved
from fedmuon.build import Parts, built
from fedmuon.callbacks.checkpoints import AtomicCheckpointIO, checkpoints
from fedmuon.callbacks.progress import RoundProgress
from fedmuon.callbacks.record import Record
from fedmuon.compose import Job, label
from fedmuon.config import Config
from fedmuon.errors import UsageError
from fedmuon.optim import routing
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


def execute(job: Job, parts: Callable[[Config, Path | None], Parts] = built) -> Run:
    """Train one run: in job.resume, a sweep's job.folder, run_dir, or a new outputs/<name>-<number>.

    What only the environment can tell is checked before a directory is made. Raises UsageError for that, RunFailed for
    a fault in training and KeyboardInterrupt for an interruption, both once summary.json says so.
    """
    config, resume = job.config, job.resume
    _check_device(config.trainer.accelerator, config.engine.name)
    before = rundir.summary(resume) if resume else {}
    if resume and before.get("status") == "finished" and before.get("rounds", 0) >= config.federation.rounds:
        return Run(before, resume)
    pieces = parts(config, resume)
    checkpoint = _checkpoint(resume, pieces) if resume else None
    path = resume or _directory(job)
    return _Experiment(job, path, pieces, before.get("id") or secrets.token_hex(4)).fit(checkpoint)


class _Experiment:
    """A run whose directory exists: everything from here on ends in its summary."""

    def __init__(self, job: Job, path: Path, parts: Parts, identity: str) -> None:
        self.config, self.path, self.parts, self.identity = job.config, path, parts, identity
        self.saved = job.saved.copy()
        self.saved.run_dir = self.saved.resume = None
        self.loggers: list[Any] = []
        if self.config.federation.store == "disk":
            parts.federation.store = DiskStore(path / "clients")

    def fit(self, checkpoint: Path | None) -> Run:
        failure: BaseException | None = None
        try:
            self._write_start()
            with _quiet():
                self.loggers = loggers.built(self.config.logger, self.path, self.identity)
                for logger in self.loggers:
                    logger.log_hyperparams(dict(OmegaConf.to_container(self.saved)))  # type: ignore[arg-type]
                trainer = self._trainer()
                trainer.fit(self.parts.federation, ckpt_path=checkpoint, weights_only=False)
            saved.save(self.parts, self.path / "model.safetensors")
            rundir.tabulate_clients(self.path)
        except BaseException as error:
            failure = error
        summary = self._write_end(failure)
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
            RoundProgress(label(self.saved), config.evaluation.metric),
        ]
        callbacks += [instantiate(node) for node in config.callbacks.values()]
        callbacks += checkpoints(self.path / "checkpoints", config.checkpoint.every, monitor, config.evaluation.mode)
        given = {key: value for key, value in asdict(config.trainer).items() if value is not None}
        if not self.parts.federation.evaluation:
            given["limit_val_batches"] = 0
        return lightning.Trainer(
            **given,
            max_epochs=config.federation.rounds,
            callbacks=callbacks,
            logger=self.loggers or False,
            default_root_dir=self.path,
            plugins=[AtomicCheckpointIO()],
            enable_progress_bar=False,
            enable_model_summary=False,
        )

    def _write_start(self) -> None:
        federation, parts = self.parts.federation, self.parts
        rundir.write(self.path / "config.yaml", OmegaConf.to_yaml(self.saved))
        if not (self.path / "partition.npz").exists():
            parts.partition.save(self.path / "partition.npz", parts.validation, parts.labels, parts.classes)
        routes = routing.table(federation.algorithm, federation.learned(), federation.local.lr)
        rundir.write_json(self.path / "routing.json", routes)
        Console().print(routing.describe(routes))
        self.start = {
            "status": "running",
            "id": self.identity,
            "name": label(self.saved),
            **({"protocol": self.config.protocol} if self.config.protocol else {}),
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "parameters": sum(p.numel() for p in federation.learned().values()),
            "versions": _versions(),
            "machine": _machine(),
        }
        rundir.write_json(self.path / "summary.json", self.start)

    def _write_end(self, failure: BaseException | None) -> dict[str, Any]:
        chosen = self.config.evaluation
        results = rundir.results(rundir.read(self.path / "metrics.jsonl"), chosen.metric, chosen.mode, chosen.targets)
        status = "finished" if failure is None else "failed" if isinstance(failure, Exception) else "interrupted"
        cause = {} if failure is None else {"cause": f"{type(failure).__name__}: {failure}"}
        summary = {**self.start, **results, "status": status, **cause}
        rundir.write_json(self.path / "summary.json", summary)
        return summary


def _directory(job: Job) -> Path:
    if named := job.folder or job.config.run_dir:
        return rundir.claim(Path(named))
    return rundir.numbered(Path("outputs"), label(job.saved))


def _checkpoint(run: Path, parts: Parts) -> Path | None:
    """last.ckpt of a run; None where it ended before its first. Raises UsageError for one that does not fit."""
    path = run / "checkpoints" / "last.ckpt"
    if not path.exists():
        return None
    try:
        content = torch.load(path, map_location="cpu", weights_only=False)
        found = {name: tensor.shape for name, tensor in content["state_dict"].items()}
        content["federation"]["server"], content["global_step"]
    except Exception as error:
        raise UsageError(
            f"resume={run}: {path.name} is no checkpoint of a federation ({type(error).__name__}); start a new run"
        ) from error
    if found != {name: tensor.shape for name, tensor in parts.federation.state_dict().items()}:
        raise UsageError(f"resume={run}: {path.name} is the checkpoint of another model; start a new run")
    return path


def _check_device(accelerator: str, engine: str) -> None:
    there = {"gpu": torch.cuda.is_available() or torch.backends.mps.is_available(), "cuda": torch.cuda.is_available()}
    there["mps"] = torch.backends.mps.is_available()
    if not there.get(accelerator, True):
        raise UsageError(
            f"trainer.accelerator={accelerator}: there is no such device here; use trainer.accelerator=cpu or auto"
        )
    if engine == "graph" and not torch.cuda.is_available():
        raise UsageError("engine=graph: needs an NVIDIA GPU, and there is none here; use engine=stacked or engine=auto")


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("fedmuon", "torch", "torchvision", "lightning", "hydra-core", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _machine() -> str:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
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
            ):
                warnings.filterwarnings("ignore", text)
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
