"""The federated experiment as a Lightning fit: an epoch is a round, a training batch a chunk of the round's clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import lru_cache
from time import perf_counter
from typing import Any

import numpy as np
import torch
from lightning import LightningModule
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from fedmuon import hooks
from fedmuon.algorithms.algorithm import Algorithm
from fedmuon.client import Client
from fedmuon.comm import memory
from fedmuon.config import Aggregation, Compression, Engine, Local, Stragglers
from fedmuon.data.partition import Partition
from fedmuon.data.samples import Batches, Samples
from fedmuon.engines.engine import Assignment, Message, Tensors
from fedmuon.engines.running import Running
from fedmuon.faults import in_round, named
from fedmuon.optim.routing import groups
from fedmuon.personal import ClientEvaluation
from fedmuon.selection import bare
from fedmuon.server import Server
from fedmuon.store import MemoryStore, State, Store
from fedmuon.stragglers import over_selected
from fedmuon.traffic import Traffic
from fedmuon.work import Work


class Federation(LightningModule):
    """The round orchestrator around a task.

    task        a LightningModule whose `training_step` returns a loss and whose `validation_step` logs metrics
    algorithm   what clients do and exchange, e.g. `Muon()` for FedMuon
    server      builds the server's torch optimizer from the parameters; it is given the pseudo-gradient -D
    train, partition   all training samples, and which of them each client has
    cohort      client ids of a round, a pure function of the round (0, 1, ...)
    wanted      answers that count in a round; None takes the size of the first cohort
    compression of what travels, see `fedmuon.server`
    store       where what clients keep from round to round is
    evaluation  named samples ("val", "test") on which the global model is evaluated after a round

    `global_step` is the number of completed rounds. `row` holds the figures of the round in progress.
    """

    def __init__(
        self,
        task: LightningModule,
        algorithm: Algorithm,
        *,
        server: Callable[[Iterable[Tensor]], Optimizer],
        train: Samples,
        partition: Partition,
        cohort: Callable[[int], np.ndarray],
        local: Local,
        aggregation: Aggregation | None = None,
        compression: Compression | None = None,
        store: Store | None = None,
        stragglers: Stragglers | None = None,
        wanted: int | None = None,
        engine: Engine | None = None,
        evaluation: Mapping[str, Samples] | None = None,
        evaluation_batch: int = 1000,
        client_evaluation: ClientEvaluation | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.client, self.sketch = Client(task, train), train.sketch()
        self.algorithm, self.server_optimizer, self.partition, self.cohort = algorithm, server, partition, cohort
        self.local, self.aggregation, self.stragglers = local, aggregation or Aggregation(), stragglers or Stragglers()
        self.wanted, self.engine_config = wanted or max(1, len(cohort(0))), engine or Engine()
        self.evaluation, self.evaluation_batch, self.seed = dict(evaluation or {}), evaluation_batch, seed
        self.client_evaluation = client_evaluation
        self.compression, self.store = compression or Compression(), store or MemoryStore()
        self.row: dict[str, Any] = {}
        self._at_start: dict[str, Any] = {}  # what the task logged before the first round
        self.client_rows: list[dict[str, Any]] = []
        self._held: dict[int, State] = {}  # what a chunk's clients kept from their last rounds
        self._restored: dict[str, Any] | None = None
        self.evaluating: Callable[[], AbstractContextManager[None]] = nullcontext  # until there is an engine

    @property
    def task(self) -> LightningModule:
        """The task; between rounds it holds the global model."""
        return self.client.task

    def learned(self) -> dict[str, Tensor]:
        """The parameters that are trained, by name; tied ones appear once, frozen ones not at all."""
        return {name: p for name, p in self.task.named_parameters() if p.requires_grad}

    def configure_optimizers(self) -> Optimizer:
        return self.server_optimizer(self.learned().values())

    # -- set-up and checkpoints

    def on_fit_start(self) -> None:
        """Bind server and engine to the task, which has its device and precision by now."""
        hooks.call(self.task, "on_fit_start", self.client.recorder)
        parameters, buffers = self.learned(), dict(self.task.named_buffers())
        of_rules = groups(self.algorithm, parameters, self.local.lr)
        self.client.data = self.client.data.to(self.device)
        local = self.local
        self.client.prepare(self.algorithm, of_rules, parameters, buffers, local.clip, local.batch_size)
        self.client.meanwhile = self._plan_ahead
        self._members = lru_cache(maxsize=2)(self.cohort)
        work = Work(
            self.partition, self._members, self.local, self.aggregation, self.stragglers, self.wanted, self.seed
        )
        self._work_of = lru_cache(maxsize=2)(work.of)  # of this round and, where there was time, the next
        self.engine = Running(self.engine_config, self.client)
        self.evaluating = self.engine.evaluating
        self.server = Server(
            self.algorithm, of_rules, parameters, buffers, self.aggregation, self.compression, self.seed
        )
        self.traffic = Traffic(self.server, self.cohort)
        self.store.start(None if self._restored is None else self._restored["clients"])
        if self._restored is not None:
            self.server.restore(self._restored["server"])
            self.engine.restore(self._restored["engine"])
            self._restored = None

    def on_train_start(self) -> None:
        logged = hooks.call(self.task, "on_train_start", self.client.recorder)
        self._at_start = {f"train/{bare(name)}": value for name, value in logged.items()}

    def on_train_end(self) -> None:
        hooks.call(self.task, "on_train_end", self.client.recorder)

    def on_fit_end(self) -> None:
        hooks.call(self.task, "on_fit_end", self.client.recorder)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        parts: dict[str, Any] = {"server": self.server, "clients": self.store, "engine": self.engine}
        checkpoint["federation"] = {name: part.checkpoint() for name, part in parts.items()} | {"data": self.sketch}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._restored = checkpoint["federation"]

    # -- a round

    def train_dataloader(self) -> Iterable[list[int]]:
        return _Chunks(self)

    def on_train_epoch_start(self) -> None:
        """Plan the round and take the global model as what its clients start from."""
        self.row, self.client_rows, self._at_start = self._at_start, [], {}
        self._started = perf_counter()
        self.plan, self._work = self._work_of(self.current_epoch)
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, Optimizer)
        self.row |= self.traffic.down(self.plan.members, self.current_epoch, optimizer)
        with self.engine.cores():
            self.broadcast = self.server.start_round(self.plan.factor, self.current_epoch)
        if self._goes_on:  # not when planning ahead: code of one's own may look at torch's default dtype
            with suppress(Exception):
                self._members(self.current_epoch + 1)

    def _plan_ahead(self) -> None:
        """Make the work of the next round, while clients train elsewhere."""
        if self._goes_on:
            with suppress(Exception):  # it comes again when that round starts
                self._work_of(self.current_epoch + 1)

    @property
    def _goes_on(self) -> bool:
        return self.current_epoch + 1 < (self.trainer.max_epochs or 0)

    def training_step(self, chunk: list[int], batch_idx: int) -> None:
        """Train a chunk of clients; after the last one aggregate, so that validation sees the new global model."""
        self._held.clear()
        work = [self._assignment(client) for client in chunk if client in self.plan.steps]
        x, buffers = self.broadcast.states["x"], self.broadcast.buffers
        with in_round(self.current_epoch + 1):
            self._before = {one.client: self._measured("before", one.client, x, buffers) for one in work}
        with self.engine.cores(), torch.autocast(self.device.type, enabled=False):  # the server's own
            with in_round(self.current_epoch + 1):
                for message in self.engine.train(work, self.broadcast):
                    self._take(message)
            self.client.restore(self.broadcast)  # whoever looks at the module sees the global model
            if self.trainer.is_last_batch:
                self._aggregate()

    def _assignment(self, client: int) -> Assignment:
        held = self._held[client] = self.store.get(client)
        kept = {slot: tensors for slot, tensors in held.items() if slot in self.algorithm.kept}
        return replace(self._work[client], kept=kept)

    def _take(self, message: Message) -> None:
        client, held = message.client, self._held[message.client]
        message.errors = {key: held[key] for key in map(memory, self.server.up.coded) if key in held}
        norm = self.server.add(message, self.plan.weights[client])
        after = self._measured("after", client, message.x, message.buffers)
        if client in self.server.rejected:
            message.kept = self.server.mended(message.kept, held)
        self.store.put(client, message.kept | message.errors, self.current_epoch + 1)
        self.client_rows.append(
            {
                "round": self.current_epoch + 1,
                "client": client,
                "samples": len(self.partition[client]),
                "steps": message.steps,
                "weight": 0.0 if math.isnan(norm) else self.plan.weights[client],
                **{f"train/{name}": value for name, value in message.metrics.items()},
                "update_norm": norm,
                "rejected": client in self.server.rejected,
                "seconds": message.seconds,
                **self._before.get(client, {}),
                **after,
            }
        )

    def _measured(self, moment: str, client: int, x: Tensors, buffers: Tensors) -> dict[str, float]:
        """Metrics of a model on a client's own held-out samples, in the rounds that ask for them."""
        if self.client_evaluation is None or not self.client_evaluation.due(self.current_epoch + 1):
            return {}
        with named(f"validation, client {client}"), self.evaluating():
            found = self.client_evaluation.measure(self.client, client, x, buffers)
        return {f"{moment}/{bare(name)}": value for name, value in found.items()}

    def _aggregate(self) -> None:
        figures = self.server.finish(self.plan.share)
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        optimizer.step()
        for row in self.client_rows:
            row["weight"] /= self.server.mass or 1.0  # as it counted: that of dropped clients went to the others
        accepted = [row for row in self.client_rows if not row["rejected"]]
        means = _means(accepted)
        self.row |= {
            **means,
            "train/lr": self.plan.factor * self.local.lr,
            "train/cohort": len(self.plan.members),
            "train/trained": len(accepted),
            **({"train/rejected": self.server.rejected} if self.server.rejected else {}),
            **{f"aggregation/{name}": value for name, value in figures.items()},
            "aggregation/largest_weight": max((row["weight"] for row in self.client_rows), default=0.0),
            **(self.client_evaluation.summary(accepted) if self.client_evaluation else {}),
            **({"notes": self._notes()} if self.engine.notes else {}),
            **self.traffic.up(len(self.client_rows)),
            "time/train": perf_counter() - self._started,
        }
        if means:  # for callbacks that monitor; loggers get the whole row at once
            self.log_dict(means, logger=False, batch_size=1)

    def _notes(self) -> list[str]:
        notes, self.engine.notes = self.engine.notes, []
        return notes

    # -- evaluation of the global model

    def val_dataloader(self) -> list[Batches]:
        return [Batches(samples.to(self.device), self.evaluation_batch) for samples in self.evaluation.values()]

    def on_validation_epoch_start(self) -> None:
        self.recorder = self.client.recorder
        self._evaluated: dict[str, float] = {}
        self._part = ""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        part = list(self.evaluation)[dataloader_idx]
        if part != self._part:
            self._close_part()
            self._open_part(part)
        transform = self.evaluation[part].transform
        self.recorder.batch_size = _batch_size(batch)
        with in_round(self.current_epoch + 1), named(f"validation, {part}"), self.evaluating():
            batch = batch if transform is None else transform(batch)
            validate = hooks.step(self.task.validation_step)
            validate(self.trainer.precision_plugin.convert_input(batch), batch_idx)

    def on_validation_epoch_end(self) -> None:
        self._close_part()
        self.row |= self._evaluated
        self.log_dict(self._evaluated, logger=False, batch_size=1)

    def _open_part(self, part: str) -> None:
        self._part = part
        self.recorder.reset()
        with in_round(self.current_epoch + 1), named(f"validation, {part}"):
            self.task.on_validation_epoch_start()

    def _close_part(self) -> None:
        if not self._part:
            return
        self.recorder.batch_size = 1
        with in_round(self.current_epoch + 1), named(f"validation, {self._part}"):
            self.task.on_validation_epoch_end()
            for name, value in self.recorder.means().items():
                self._evaluated[f"{self._part}/{bare(name)}"] = value
        self.recorder.reset()

    test_dataloader = val_dataloader
    on_test_epoch_start, test_step, on_test_epoch_end = (
        on_validation_epoch_start,
        validation_step,
        on_validation_epoch_end,
    )


class _Chunks:
    """The round's clients in chunks; as many in every round, the last ones empty where clients are few."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation

    def __len__(self) -> int:
        federation, chunk = self.federation, self.federation.engine_config.chunk
        factor, clients = federation.stragglers.over_selection, len(federation.partition)
        return math.ceil(over_selected(federation.wanted, clients, factor) / chunk) if chunk else 1

    def __iter__(self) -> Iterator[list[int]]:
        members = list(self.federation._work_of(self.federation.current_epoch)[0].members)
        count = len(self)
        size = max(self.federation.engine_config.chunk or 1, math.ceil(len(members) / count))
        for number in range(count):
            yield members[number * size : (number + 1) * size]


def _means(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of each training metric the mean over the clients that logged it, by their weights p_i.

    A client's own value is the mean over its local steps weighted by batch size; of the loss, the plain mean.
    """
    means: dict[str, float] = {}
    for name in dict.fromkeys(key for row in rows for key in row if key.startswith("train/")):
        having = [row for row in rows if name in row]
        means[name] = sum(row["weight"] * row[name] for row in having) / sum(row["weight"] for row in having)
    return means


def _batch_size(batch: Any) -> int:
    return len(tree_leaves(batch)[0])
