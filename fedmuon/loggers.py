"""Lightning's loggers, set up so that each works without an account, a prompt or a network."""

from __future__ import annotations

import netrc
import os
import sys
from collections.abc import Iterator, Sequence
from os.path import expanduser
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger

_PATIENCE = 60  # seconds that W&B may take to answer before a run begins


def wandb(
    run: Path, identity: str, project: str | None = None, name: str | None = None, group: str | None = None,
    tags: Sequence[str] = (), entity: str | None = None,
) -> Logger:  # fmt: skip
    """Weights & Biases in the run directory; offline unless a key is configured, and where it cannot be reached.

    A resumed run keeps its id. What is not given is what W&B's own environment variables say.
    """
    import wandb as library

    _at_home(run.absolute() / "wandb" / "home")

    def logger(mode: str) -> WandbLogger:
        if mode != "online":
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        made = WandbLogger(
            name=name or os.environ.get("WANDB_NAME") or run.name,
            save_dir=run.absolute(),  # the service resolves a relative one against its own first folder
            id=identity,
            project=project or os.environ.get("WANDB_PROJECT") or "fedmuon",
            entity=entity,
            group=group,
            tags=list(tags) or None,
            offline=mode == "offline",
            mode=mode,
            resume="allow",
            settings=library.Settings(console="off", silent=True, x_disable_stats=True, init_timeout=_PATIENCE),
        )
        made._wandb_init.pop("anonymous", None)  # Lightning hands on an option that W&B no longer has, and warns of
        return made

    if (mode := wandb_mode()) != "online":
        return logger(mode)
    try:
        online = logger(mode)
        online.experiment  # noqa: B018  # it is asked here, where there is another way
        return online
    except Exception as error:
        why = " ".join(str(error).split())[:200]
    print(f"fedmuon: logger=wandb: offline, W&B could not be used ({why}); later: wandb sync {run}/wandb/offline-run-*")
    library.teardown()  # which holds the run's id
    return logger("offline")


def _at_home(instead: Path) -> None:
    """W&B keeps files of its own at home: in `instead` where that cannot be written, or there is none."""
    home = expanduser("~")
    if home == "~":  # no HOME, nor is the user known to the system
        os.environ["HOME"] = str(instead)
    elif os.access(home, os.W_OK | os.X_OK):
        return
    for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        os.environ.setdefault(name, str(instead))


def wandb_mode() -> str:
    """WANDB_MODE if it is set; else online where a key is configured (environment or netrc), offline otherwise."""
    if mode := os.environ.get("WANDB_MODE"):
        return mode
    if os.environ.get("WANDB_API_KEY"):
        return "online"
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    file = expanduser(os.environ.get("NETRC", "~/.netrc"))
    try:
        return "online" if netrc.netrc(file).authenticators(host) else "offline"
    except (OSError, netrc.NetrcParseError):
        return "offline"


def tensorboard(run: Path, identity: str) -> Logger:
    """TensorBoard's files in RUN/tensorboard."""
    return TensorBoardLogger(save_dir=run.absolute(), name="tensorboard", version="")


def csv(run: Path, identity: str) -> Logger:
    """Lightning's CSV file in RUN/csv."""
    return CSVLogger(save_dir=run.absolute(), name="csv", version="")


def built(configured: dict[str, Any], run: Path, identity: str) -> Iterator[Logger]:
    """Every configured logger; an own one is called with run=Path and identity=str beside its configuration."""
    from hydra.utils import get_method

    for node in configured.values():
        values = {key: value for key, value in node.items() if key != "_target_"}
        yield get_method(node["_target_"])(run=run, identity=identity, **values)


def finish(sinks: list[Any], *, failed: bool) -> None:
    """Close every logger, so that the next run in this process is a run of its own; what fails is told, and no more."""
    for sink in sinks:
        for close in (_finalize, _finish_wandb):
            try:
                close(sink, failed)
            except Exception as error:
                told = " ".join(f"{type(error).__name__}: {error}".split())
                print(f"fedmuon: {type(sink).__name__} could not be closed ({told})", file=sys.stderr, flush=True)


def _finalize(sink: Any, failed: bool) -> None:
    sink.finalize("failed" if failed else "success")


def _finish_wandb(sink: Any, failed: bool) -> None:
    """End the run that the logger began, if it did; one that its user had open stays open."""
    run = sink._experiment if isinstance(sink, WandbLogger) else None
    if run is not None and sink._wandb_init.get("id") in (None, run.id):
        run.finish(exit_code=1 if failed else 0)
