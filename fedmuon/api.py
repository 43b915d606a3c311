"""Federating a user's own LightningModule from Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule
from lightning.pytorch.callbacks import Callback

from fedmuon import facts, hooks, rundir
from fedmuon.build import Parts, assembled
from fedmuon.compose import Composer
from fedmuon.config import SPLITS, Config
from fedmuon.data.dataset import DataSet
from fedmuon.data.given import read
from fedmuon.data.partition import Partition
from fedmuon.data.samples import Samples
from fedmuon.engines.dropout import uninstall
from fedmuon.engines.generators import seeded
from fedmuon.errors import UsageError
from fedmuon.experiment import Run, execute
from fedmuon.job import Job, checked_job
from fedmuon.overrides import quoted
from fedmuon.resuming import stored
from fedmuon.saved import restore


def federate(
    module: LightningModule,
    train: Any,
    *,
    val: Any = None,
    test: Any = None,
    partition: str | Partition | Sequence[Sequence[int]] = "iid",
    algorithm: str = "fedmuon",
    rounds: int | None = None,
    callbacks: Any = (),
    **overrides: Any,
) -> Run:
    """Train a LightningModule federatedly; afterwards it holds the global model. Returns (summary, path).

    module     `training_step` returns the loss, `validation_step` logs metrics; its configure_optimizers is not used,
               and of its hooks those of `fedmuon.hooks.CALLED` are called
    train      tensors, arrays, a map-style data set, a DataLoader or a LightningDataModule; see
               `fedmuon.data.given.as_samples`
    val, test  the same, evaluated after every round; `val` selects. They need a `validation_step`
    partition  an option of the group, or one list of indices into `train` for every client
    rounds     30 unless given, or those of the run that resume= names
    callbacks  Lightning's own, instances in a list, options of the group by name, or both
    overrides  any key of the configuration: **{"local.lr": 0.1}, local={"lr": 0.1}, logger="none", run_dir="..."

    evaluation.metric is "loss" unless given; of a name that does not tell which way is better, evaluation.mode does.
    Raises UsageError for wrong input, RunFailed for a fault in training.
    """
    _check_package("train", train)
    _check_module(module)
    with seeded(_seed_in(overrides), torch.device("cpu")):  # what is drawn while data is read is the run's, too
        data, validates = read(train, val, test)
    lists = None if isinstance(partition, str) else _lists(partition, len(data.train))
    options, instances = _callbacks(callbacks)
    keys = {"algorithm": algorithm, "evaluation.metric": "loss", "evaluation.targets": [], "data.validation": 0.0}
    keys |= {} if rounds is None else {"federation.rounds": rounds}
    if lists is None:
        keys["partition"] = partition
    else:
        keys |= {"federation.clients": len(lists), "federation.cohort": min(10, len(lists))}
    keys |= dict(_flat(overrides | options))
    _check_keys(keys, module, data, validates, lists)
    nodes = {"data": facts.of_data(data), "model": facts.of_module(module)}
    nodes |= {} if lists is None else {"partition": {"name": "given"}}
    composed = Composer().compose([f"{key}={_written(value)}" for key, value in keys.items()])
    job = checked_job(composed, given_nodes=nodes)
    _tell_unused(module, algorithm, test is not None)
    return _trained(job, module, data, validates, lists, instances)


def _trained(
    job: Job,
    module: LightningModule,
    data: DataSet,
    validates: Samples | None,
    lists: Partition | None,
    callbacks: list[Callback],
) -> Run:
    """Execute a job; afterwards the module holds the global model, also of a run that was complete."""
    trains = False

    def parts(config: Config, run: Path | None) -> Parts:
        nonlocal trains
        trains = True
        hooks.set_up(module)
        _check_learns(module)
        return assembled(config, module, data, run, lists=lists, validates=validates)

    try:
        run = execute(job, parts, callbacks)
        if not trains:
            hooks.set_up(module)
            restore(run.path, module)
        return run
    finally:
        for name in ("log", "log_dict"):  # of the recorder: the module is the user's own again
            module.__dict__.pop(name, None)
        uninstall(module)


def _seed_in(overrides: Mapping[str, Any]) -> int:
    """The seed of the run that begins, or of the one that goes on."""
    resumed = overrides.get("resume") or None
    began = 0 if resumed is None else stored(rundir.named("resume", resumed), "resume=").get("seed")
    seed = overrides.get("seed", began)
    return seed % 2**63 if isinstance(seed, int) else 0  # what is no seed is refused where all keys are


def _check_keys(
    keys: Mapping[str, Any], module: LightningModule, data: DataSet, validates: Samples | None, lists: Partition | None
) -> None:
    """Raise UsageError for the first key that does not go with what Python gives."""
    for group in ("model", "data"):
        if group in keys:
            raise UsageError(f"{group}={keys[group]}: is given by module= and train= here; leave it away")
    for key, value in keys.items():
        group, _, leaf = key.lstrip("+~").partition(".")
        if group == "data" and leaf not in SPLITS:
            raise UsageError(
                f"{key}={_written(value)}: describes data that is read from files, and train= gives it here; allowed: "
                f"{', '.join(f'data.{one}' for one in SPLITS)}; prepare the samples in Python, and augment them by "
                "giving fedmuon.data.Samples(tensors, augment=...)"
            )
        if group == "partition" and lists is not None:
            raise UsageError(
                f"{key}={_written(value)}: shapes a partition that is drawn, and partition= gives every client "
                "its list here; leave one of them away"
            )
    plain = {key.lstrip("+~"): value for key, value in keys.items()}
    clients = _written(plain.get("federation.clients"))
    if lists is not None and clients != str(len(lists)):
        raise UsageError(
            f"federation.clients={clients}: differs from partition=, which gives lists for {len(lists)} clients; "
            "leave federation.clients away"
        )
    share, of_clients = (_number(plain.get(f"data.{key}", 0.0)) for key in ("validation", "client_validation"))
    for key, value in (("data.validation", share), ("data.client_validation", of_clients)):
        if not isinstance(value, Real):
            raise UsageError(f"{key}={_written(value)}: must be a number from 0 to below 1; 0 holds nothing out")
    if share and validates is not None:
        raise UsageError(
            f"data.validation={share}: holds nothing out beside val= (or a val_dataloader), which selects; "
            "leave one of them away"
        )
    if share and lists is not None:
        raise UsageError(
            f"data.validation={share}: holds nothing out where partition= gives every client its list; leave samples "
            "out of the lists and give them as val="
        )
    evaluates = share or of_clients or validates is not None or data.test is not None
    if evaluates and type(module).validation_step is LightningModule.validation_step:
        raise UsageError(
            f"module={type(module).__name__}: has no validation_step, which val=, test= and held-out samples need; "
            "define one that logs metrics"
        )


def _check_package(key: str, given: Any) -> None:
    """The package pytorch_lightning holds the same classes once more, and they are others."""
    if any(base.__module__.startswith("pytorch_lightning.") for base in type(given).__mro__):
        raise UsageError(
            f"{key}={type(given).__name__}: is of pytorch_lightning; write import lightning.pytorch as pl for "
            "the same classes of the package lightning"
        )


def _check_module(module: LightningModule) -> None:
    _check_package("module", module)
    name = type(module).__name__
    if not isinstance(module, LightningModule):
        raise UsageError(f"module={name}: must be a LightningModule whose training_step returns the loss")
    if type(module).training_step is LightningModule.training_step:
        raise UsageError(f"module={name}: has no training_step; define one that returns the loss")
    if not module.automatic_optimization:
        raise UsageError(
            f"module={name}: automatic_optimization is False; optimisation is left to fedmuon, return the loss instead"
        )


def _tell_unused(module: LightningModule, algorithm: Any, tests: bool) -> None:
    name = type(module).__name__
    if type(module).configure_optimizers is not LightningModule.configure_optimizers:
        print(
            f"fedmuon: {name}.configure_optimizers is not used: "
            f"clients step by algorithm={algorithm}, the server by its own optimizer (server=)"
        )
    if unused := hooks.left_out(module, tests):
        print(
            f"fedmuon: {name} defines hooks that are not called: {', '.join(unused)}; called are "
            f"{', '.join(hooks.CALLED)}; val= and test= go through validation_step; a Callback sees rounds as epochs"
        )


def _check_learns(module: LightningModule) -> None:
    if not any(p.requires_grad for p in module.parameters()):
        raise UsageError(f"module={type(module).__name__}: has no parameter that is trained; nothing could be learned")


def _lists(partition: Partition | Sequence[Sequence[int]], samples: int) -> Partition:
    if not isinstance(partition, Partition | Sequence):
        raise UsageError(
            f"partition={type(partition).__name__}: must be an option's name, or one list of indices a client"
        )
    lists = partition if isinstance(partition, Partition) else Partition.from_lists(partition)
    wrong = lists.indices[(lists.indices < 0) | (lists.indices >= samples)]
    if len(wrong):
        raise UsageError(f"partition: index {wrong[0]} is out of range; train has {samples} samples, counted from 0")
    return lists


def _callbacks(given: Any) -> tuple[dict[str, Any], list[Callback]]:
    """(options of the group, instances) of what federate is given."""
    if isinstance(given, Mapping):
        return {"callbacks": given}, []
    every = list(given) if isinstance(given, list | tuple) else [given]
    for one in every:
        _check_package("callbacks", one)
        if not isinstance(one, str | Callback):
            raise UsageError(f"callbacks={one!r}: must be an instance of lightning's Callback, or an option's name")
    names = [one for one in every if isinstance(one, str)]
    return {"callbacks": names} if names else {}, [one for one in every if isinstance(one, Callback)]


def _flat(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _number(value: Any) -> Any:
    """A NumPy or torch number as Python's own; anything else as it is."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value


def _written(value: Any) -> str:
    """A Python value as Hydra's command line writes it."""
    value = _number(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_written, value))}]"
    if isinstance(value, int | float):
        return repr(value)
    return quoted(value)
