"""What only several values together, or files, can tell. No torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from os.path import expanduser
from pathlib import Path
from typing import Any

from fedmuon import rundir
from fedmuon.config import Config
from fedmuon.data.schemas import check_file
from fedmuon.errors import UsageError, nearest


def check_together(config: Config) -> None:
    """Raise UsageError for the first combination of values that cannot be trained, and for files that are not there."""
    from fedmuon.data.cohort import cohort_size

    cohort_size(config.federation.clients, config.federation.cohort)
    _check_work(config)
    _check_compression(config)
    _check_selection(config)
    _check_trainer(config)
    check_data(config)
    if config.resume is None or not (Path(config.resume) / "partition.npz").exists():
        check_file(config.partition, "partition")
    check_file(config.sampler, "sampler")
    for key, given in (("run_dir", config.run_dir), ("resume", config.resume)):
        if given is not None:
            rundir.check_name(key, Path(given))
    if config.run_dir is not None and config.resume is None:
        path = Path(expanduser(config.run_dir))
        rundir.usable("run_dir", path)
        if path.is_dir() and rundir.holds(path):
            raise UsageError(f"run_dir={path}: exists and is not empty; name a new folder, or go on with resume={path}")


def check_data(config: Config) -> None:
    """Raise UsageError where the images of `data` cannot be read."""
    if type(config.data).__name__ == "Data":
        from fedmuon.data.sources import Source

        Source.of(config.data).check()


def check_new(config: Config) -> None:
    """Raise UsageError for what a run that begins should not be: one in which nothing is ever evaluated."""
    rounds = config.federation.rounds
    for key, every in (
        ("trainer.check_val_every_n_epoch", config.trainer.check_val_every_n_epoch),
        ("evaluation.clients_every", config.evaluation.clients_every),
    ):
        if every > rounds:
            raise UsageError(f"{key}={every}: is beyond the last round, nothing would be evaluated; at most {rounds}")


def _check_work(config: Config) -> None:
    if config.local.steps is None and config.local.epochs is None:
        raise UsageError("local.steps=null, local.epochs=null: a client needs work; set one of them")
    server = _values(config.server)
    if server.get("nesterov") and not server.get("momentum"):
        raise UsageError("server.nesterov=true: needs momentum; set server.momentum, for example to 0.9")


def _check_compression(config: Config) -> None:
    algorithm = config.algorithm
    for key, link, sent in (
        ("up", config.compression.up, algorithm.upload()),
        ("down", config.compression.down, algorithm.broadcast()),
    ):
        for name in link.states or () if link.method != "none" else ():
            given = f"compression.{key}.states: {name}"
            if name not in sent:
                raise UsageError(f"{given} is not sent; must be among {', '.join(sent)}{nearest(name, sent)}")
            if name in algorithm.positive and link.method != "bf16":
                raise UsageError(
                    f"{given} is a second moment, which {link.method} would push to zero or below; "
                    f"leave it out, or use compression.{key}.method=bf16"
                )


def _check_selection(config: Config) -> None:
    """A metric, or a callback, that waits for figures which nobody computes."""
    chosen, data = config.evaluation, _values(config.data)
    if chosen.clients_every and not data.get("client_validation"):
        raise UsageError(
            f"evaluation.clients_every={chosen.clients_every}: clients have no samples of their own to evaluate on; "
            "hold some out, for example data.client_validation=0.2"
        )
    if _values(config.model).get("_target_") == "fedmuon.federate":
        return  # what a user's module logs is known once it has been evaluated
    logged = ("accuracy", "loss")
    if chosen.metric not in logged:
        raise UsageError(
            f"evaluation.metric={chosen.metric}: must be one of {', '.join(logged)}{nearest(chosen.metric, logged)}"
        )
    for name, node in config.callbacks.items():
        monitor = str(node.get("monitor", "")) if isinstance(node, Mapping) else ""
        if monitor.startswith("val/") and not data.get("validation"):
            raise UsageError(
                f"callbacks.{name}.monitor={monitor}: there is no validation split to watch; "
                "set data.validation above 0"
            )


def _check_trainer(config: Config) -> None:
    if config.engine.name == "graph" and config.trainer.accelerator in ("cpu", "mps"):
        raise UsageError(
            f"engine=graph: is for NVIDIA GPUs, not for trainer.accelerator={config.trainer.accelerator}; "
            "use engine=stacked, or trainer.accelerator=cuda"
        )
    limit = config.trainer.limit_val_batches
    if isinstance(limit, float) and limit > 1:
        raise UsageError(
            f"trainer.limit_val_batches={limit}: must be a whole number of batches, or a share from 0.0 to 1.0"
        )
    if config.engine.precision is not None and config.trainer.precision in ("64-true", "64"):
        raise UsageError(
            f"engine.precision={config.engine.precision}: cannot be with trainer.precision=64-true, which computes in "
            "64 bits throughout; leave one of the two away"
        )
    time = config.trainer.max_time
    if time is not None and not re.fullmatch(r"\d+:\d\d:\d\d:\d\d", time):
        raise UsageError(f"trainer.max_time={time}: must be days:hours:minutes:seconds, such as 00:12:00:00")


def _values(node: Any) -> Mapping[str, Any]:
    return node if isinstance(node, Mapping) else vars(node)
