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

from fedmuon.config import SPLITS, Config
from fedmuon.data.cohort import cohort_size
from fedmuon.data.dataset import DataSet
from fedmuon.data.partition import Partition, check_indices, load_validation, validation_split
from fedmuon.errors import UsageError, shown
from fedmuon.federation import Federation
from fedmuon.personal import ClientEvaluation, split_clients
from fedmuon.plan import plan
from fedmuon.stragglers import over_selected
from fedmuon.tasks import ImageClassification

_LOOKED_AT = 1000  # rounds, where nobody trains in those before


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
    data = _call("data", config.data, leave=SPLITS)
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
    sampled, wanted = cohorts(config, partition), cohort_size(len(partition), config.federation.cohort)
    _check_trains(config, training, sampled, wanted)
    federation = Federation(
        task,
        config.algorithm,
        server=partial(get_object(target(config.server)), **_values(config.server)),
        train=data.train,
        partition=training,
        cohort=sampled,
        local=config.local,
        aggregation=config.aggregation,
        compression=config.compression,
        stragglers=config.stragglers,
        wanted=wanted,
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
        members = np.asarray(_call("sampler", config.sampler, given=given, leave=("seed",), sizes=sizes))
        if len(wrong := members[(members < 0) | (members >= clients)]):
            raise UsageError(
                f"sampler={_last(config.sampler)}: names client {wrong[0]} in round {round + 1}; "
                f"federation.clients={clients} are counted from 0"
            )
        return members

    for round in (0, config.federation.rounds - 1):
        cohort(round)
    return cohort


def _check_trains(config: Config, partition: Partition, cohort: Callable[[int], np.ndarray], wanted: int) -> None:
    """Raise UsageError for a run in which nobody would ever train; a round in which somebody does is enough."""
    if not len(partition.indices):
        raise UsageError(
            f"partition: gives none of {len(partition):,} clients a sample to train on; give at least one of them some"
        )
    rounds, late, drawn = min(config.federation.rounds, _LOOKED_AT), config.stragglers, False
    for round in range(rounds):
        members = [int(client) for client in cohort(round)]
        planned = plan(
            members, partition, local=config.local, aggregation=config.aggregation, stragglers=late, wanted=wanted,
            seed=config.seed, round=round,
        )  # fmt: skip
        if planned.steps:
            return
        drawn = drawn or any(len(partition[client]) for client in members)
    told = f"in {'the first' if rounds < config.federation.rounds else 'any of'} {rounds:,} rounds"
    if drawn:
        raise UsageError(
            f"stragglers.failure={late.failure}, stragglers.deadline={shown(late.deadline)}: no client answers {told}, "
            "nothing would be trained; lower the one, or raise the other"
        )
    raise UsageError(
        f"sampler={_last(config.sampler)}: draws no client with samples {told}, nothing would be "
        f"trained; {np.sum(partition.sizes > 0):,} of {len(partition):,} clients have some: draw more, or others"
    )


def target(node: Any) -> str:
    """The `_target_` of a group's node."""
    return str(node["_target_"] if isinstance(node, Mapping) else node._target_)


def _last(node: Any) -> str:
    """The last part of a `_target_`: what it is called."""
    return target(node).rpartition(".")[2]


def _values(node: Any) -> dict[str, Any]:
    """A node's parameters, without its target and name."""
    pairs = node if isinstance(node, Mapping) else {f.name: getattr(node, f.name) for f in fields(node)}
    return {key: value for key, value in pairs.items() if key not in ("_target_", "name")}


def _call(group: str, node: Any, *, given: tuple[Any, ...] = (), leave: tuple[str, ...] = (), **also: Any) -> Any:
    """Call a group's target. Raises UsageError, naming the group, where it cannot be found or refuses its arguments."""
    function = _found(group, node)
    try:
        return function(*given, **{k: v for k, v in _values(node).items() if k not in leave}, **also)
    except TypeError as error:
        raise UsageError(f"{group}={_last(node)}: {error}; its parameters are the keys of {group}") from error


def _found(group: str, node: Any) -> Callable[..., Any]:
    name = target(node)
    try:
        return get_object(name)
    except Exception as error:
        raise UsageError(
            f"{group}._target_={name}: cannot be imported ({error.__cause__ or error}); "
            "install it or put its folder on PYTHONPATH"
        ) from error
