"""How well the global model does, before and after local training, on samples that each client holds out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from lightning import LightningModule
from torch import Tensor

from fedmuon import keyed
from fedmuon.client import Client
from fedmuon.config import Evaluation
from fedmuon.data.feature_shift import Shift
from fedmuon.data.partition import Partition
from fedmuon.data.samples import Batches
from fedmuon.hooks import step
from fedmuon.randomness import stream
from fedmuon.selection import way, worst_tenth


def split_clients(partition: Partition, share: float, seed: int) -> tuple[Partition, Partition]:
    """(training part, held-out part) of every client's samples; a client keeps at least one sample to train on.

    What is held out, nobody trains on: the share is of a client's different samples, and is drawn from those that no
    other client has. Prints how many clients have too few of them, as may be where lists of a file share samples.
    """
    indices, owners = partition.indices, partition.owners
    _, first = np.unique(owners * (indices.max(initial=0) + 1) + indices, return_index=True)  # entries less repeats
    different = np.bincount(owners[first], minlength=len(partition)).tolist()
    alone = np.sort(first[np.bincount(indices[first])[indices[first]] == 1])  # entries whose sample has one client
    chosen, short = [], 0
    for client, own in enumerate(np.split(alone, np.searchsorted(alone, partition.offsets[1:-1]))):
        asked = min(round(share * different[client]), max(0, different[client] - 1))
        chosen.append(own[stream(seed, "held_out", 0, client).permutation(len(own))[:asked]])
        short += len(own) < asked
    if short:
        print(
            f"fedmuon: data.client_validation={share}: {short} of {len(partition)} clients hold out fewer samples than "
            "that; samples that several clients have are never held out",
            flush=True,
        )
    held_out = np.concatenate(chosen)
    kept = np.flatnonzero(~np.isin(indices, indices[held_out]))
    return _part(partition, kept), _part(partition, held_out)


def _part(partition: Partition, entries: np.ndarray) -> Partition:
    """Some of a partition's entries, each client's in ascending order of the samples."""
    part = Partition.from_owners(partition.indices[entries], partition.owners[entries], len(partition))
    return replace(partition, indices=part.indices, offsets=part.offsets)


class ClientEvaluation:
    """Evaluates on the clients' held-out samples, as the task's validation_step does.

    With partition=feature_shift clients see them as they see those they train on, with the same noise in every round.
    """

    def __init__(self, held_out: Partition, evaluation: Evaluation) -> None:
        self.held_out, self.every, self.batch_size = held_out, evaluation.clients_every, evaluation.batch_size
        self.modes = {evaluation.metric: evaluation.mode}

    def due(self, round: int) -> bool:
        """Whether round number `round`, from 1, is evaluated."""
        return round % self.every == 0

    def measure(
        self, client: Client, member: int, x: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> dict[str, float]:
        """Metrics of the model (x, buffers) on a client's held-out samples, if it has any. Overwrites the task."""
        index = torch.from_numpy(self.held_out[member])
        if not len(index):
            return {}
        task, recorder, precision = client.task, client.recorder, client.trainer.precision_plugin
        samples, shift = client.data.take(index), Shift.of([self.held_out.features_of(member)], client.device)
        keys = keyed.of_samples(torch.tensor(member, dtype=torch.int32, device=client.device), len(index))
        recorder.reset()
        with torch.no_grad(), precision.val_step_context(), _evaluating(task):
            for name, p in client.learned.items():
                p.copy_(x[name])
            for name, b in client.buffers_by_name.items():
                b.copy_(buffers[name])
            task.on_validation_epoch_start()
            validate = step(task.validation_step)
            parts = zip(Batches(samples, self.batch_size), keys.split(self.batch_size), strict=True)
            for number, (batch, of_samples) in enumerate(parts):
                recorder.batch_size = len(of_samples)
                batch = samples.transform(batch) if samples.transform else batch
                if shift is not None:
                    images, *rest = batch
                    batch = (shift(images, of_samples), *rest)
                validate(precision.convert_input(batch), number)
            recorder.batch_size = 1
            task.on_validation_epoch_end()
        found = recorder.means()
        recorder.reset()
        return found

    def summary(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Of each metric, before and after: plain mean, mean by samples, deviation, mean of the worst 10 %."""
        figures: dict[str, float] = {}
        for key in dict.fromkeys(key for row in rows for key in row if key.startswith(("before/", "after/"))):
            having = [row for row in rows if key in row]
            values = np.array([row[key] for row in having])
            sizes = np.array([len(self.held_out[row["client"]]) for row in having])
            name = key.partition("/")[2]
            higher = self.modes.get(name, way(name)) != "min"
            figures |= {
                f"clients/{key}_mean": float(values.mean()),
                f"clients/{key}_mean_by_samples": float(values @ sizes / sizes.sum()),
                f"clients/{key}_deviation": float(values.std()),
                f"clients/{key}_worst_tenth": worst_tenth(values, higher),
            }
        return figures


@contextmanager
def _evaluating(task: LightningModule) -> Iterator[None]:
    """In evaluation mode; afterwards every module is in the mode it was in, such as one that its user froze."""
    modes = [(module, module.training) for module in task.modules()]
    task.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
