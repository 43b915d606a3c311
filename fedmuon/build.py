"""From a checked configuration to the parts of an experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra.utils import get_object
from lightning import LightningModule
from torch.nn.parameter import is_lazy

from fedmuon.config import Config
from fedmuon.data.cohort import cohort_size
from fedmuon.data.dataset import DataSet
from fedmuon.data.partition import Partition, check_indices, load_validation, validation_split
from fedmuon.errors import UsageError
from fedmuon.federation import Federation
from fedmuon.personal import ClientEvaluation, split_clients
from fedmuon.stragglers import over_selected
from fedmuon.tasks import ImageClassification


@dataclass
class Parts:
    """What an experiment is made of. `validation`: indices of the training samples held out; `labels`: of them all."""

    federation: Federation
    partition: Partition
    validation: np.ndarray
    classes: tuple[str, ...]
    input_shape: tuple[int, ...]
    labels: np.ndarray | None = None


def built(config: Config, run: Path | None = None) -> Parts:
    """Everything that `config` names; the partition of `run`, where a run is continued."""
    data = load_data(config)
    return assembled(config, image_task(config, data.input_shape, len(data.classes)), data, run)


def load_data(config: Config) -> DataSet:
    """The data set of `data`. Raises UsageError for what cannot be read."""
    data = _call("data", config.data, leave=("validation", "client_validation", "seed"))
    if not isinstance(data, DataSet):
        raise UsageError(
            f"data._target_={target(config.data)}: must return a fedmuon.data.DataSet, not {type(data).__name__}"
        )
    return data


def image_task(config: Config, input_shape: tuple[int, ...], classes: int) -> ImageClassification:
    """The network of `model` as an image classification task, initialised from model.seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_values(config.model).get("seed", config.seed))
        network = _call("model", config.model, leave=("seed",), input_shape=input_shape, classes=classes)
    return ImageClassification(network, classes)


def assembled(
    config: Config, task: LightningModule, data: DataSet, run: Path | None = None,
    *, lists: Partition | None = None, validates: Any = None,
) -> Parts:  # fmt: skip
    """Split, partition and federation around a task; `lists` and `validates` are given in Python.

    Raises UsageError for a network whose parameters have no shape yet, as those of lazy layers.
    """
    if lazy := [name for name, p in task.named_parameters() if is_lazy(p)]:
        raise UsageError(f"model: {lazy[0]} has no shape before a first batch; call the network on one when it is made")
    file = run / "partition.npz" if run is not None else None
    if file is not None and file.exists():
        check_indices(file, len(data.train), data.labels)
        partition, held_out = Partition.load(file), load_validation(file)
    elif lists is not None:
        partition, held_out = lists, np.empty(0, np.int64)
    else:
        partition, _, held_out = divided(config, data, holds_out=validates is None)
    if validates is None and len(held_out):
        validates = data.train.take(torch.from_numpy(held_out))
    training, personal = partition, None
    if share := float(_values(config.data).get("client_validation", 0.0)):
        training, own = split_clients(partition, share, int(_values(config.data).get("seed", config.seed)))
        if config.evaluation.clients_every:
            personal = ClientEvaluation(own, config.evaluation)
    federation = Federation(
        task,
        config.algorithm,
        server=partial(get_object(target(config.server)), **_values(config.server)),
        train=data.train,
        partition=training,
        cohort=cohorts(config, partition),
        local=config.local,
        aggregation=config.aggregation,
        compression=config.compression,
        stragglers=config.stragglers,
        wanted=cohort_size(len(partition), config.federation.cohort),
        engine=config.engine,
        evaluation={
            name: samples for name, samples in (("val", validates), ("test", data.test)) if samples is not None
        },
        evaluation_batch=config.evaluation.batch_size,
        client_evaluation=personal,
        seed=config.seed,
    )
    return Parts(federation, partition, held_out, data.classes, data.input_shape, data.labels)


def divided(config: Config, data: DataSet, holds_out: bool = True) -> tuple[Partition, np.ndarray, np.ndarray]:
    """(partition, train, validation): indices of the training samples; what validation holds out, no client has.

    Prints what a person should know about lists from a file. Raises UsageError for a partition that cannot be made.
    """
    count = len(data.train)
    labels = data.labels if data.labels is not None else np.zeros(count, np.int64)
    share = float(_values(config.data).get("validation", 0.0)) if holds_out else 0.0
    train, held_out = validation_split(labels, share, int(_values(config.data).get("seed", config.seed)))
    if share and not len(held_out):
        raise UsageError(
            f"data.validation={share}: holds out none of {count} samples, of which each of {len(np.unique(labels))} "
            "classes keeps one to train on; raise it, or leave it away to hold out nothing"
        )
    node, given = config.partition, (count if data.labels is None else labels, config.federation.clients)
    wanted = signature(_found("partition", node)).parameters
    groups: dict[str, Any] = {"groups": getattr(data, "groups", None)} if "groups" in wanted else {}
    partition = _call("partition", node, given=given, among=train, **groups)
    if not isinstance(partition, Partition):
        raise UsageError(f"partition._target_={target(node)}: must return a Partition, not {type(partition).__name__}")
    for note in partition.notes:
        print(f"fedmuon: {note}", flush=True)
    return partition, train, held_out


def cohorts(config: Config, partition: Partition) -> Callable[[int], np.ndarray]:
    """The cohort of each round, counted from 0. Raises UsageError at once where the first or the last cannot be had."""
    clients, sizes = len(partition), partition.sizes
    size = over_selected(cohort_size(clients, config.federation.cohort), clients, config.stragglers.over_selection)

    def cohort(round: int) -> np.ndarray:
        given = (config.seed, round, clients, size)
        return _call("sampler", config.sampler, given=given, leave=("seed",), sizes=sizes)

    for round in (0, config.federation.rounds - 1):
        cohort(round)
    return cohort


def target(node: Any) -> str:
    """The `_target_` of a group's node."""
    return str(node["_target_"] if isinstance(node, Mapping) else node._target_)


def _values(node: Any) -> dict[str, Any]:
    """A node's parameters, without its target and name."""
    pairs = node if isinstance(node, Mapping) else {f.name: getattr(node, f.name) for f in fields(node)}
    return {key: value for key, value in pairs.items() if key not in ("_target_", "name")}


def _call(group: str, node: Any, *, given: tuple[Any, ...] = (), leave: tuple[str, ...] = (), **also: Any) -> Any:
    """Call a group's target. Raises UsageError, naming the group, where it cannot be found or refuses its arguments."""
    name, function = target(node), _found(group, node)
    try:
        return function(*given, **{k: v for k, v in _values(node).items() if k not in leave}, **also)
    except TypeError as error:
        raise UsageError(
            f"{group}={name.rpartition('.')[2]}: {error}; its parameters are the keys of {group}"
        ) from error


def _found(group: str, node: Any) -> Callable[..., Any]:
    name = target(node)
    try:
        return get_object(name)
    except Exception as error:
        raise UsageError(
            f"{group}._target_={name}: cannot be imported ({error.__cause__ or error}); "
            "install it or put its folder on PYTHONPATH"
        ) from error
