"""How well the global model does, before and after local training, on samples that each client holds out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmuon.client import Client
from fedmuon.config import Evaluation
from fedmuon.data.partition import Partition, offsets_of
from fedmuon.data.samples import Batches
from fedmuon.randomness import stream
from fedmuon.selection import way


def split_clients(partition: Partition, share: float, seed: int) -> tuple[Partition, Partition]:
    """(training part, held-out part) of every client's samples; a client keeps at least one sample to train on."""
    train, held_out = [], []
    for client in range(len(partition)):
        samples = partition[client]
        count = min(round(share * len(samples)), max(0, len(samples) - 1))
        order = stream(seed, "held_out", 0, client).permutation(len(samples))
        held_out.append(np.sort(samples[order[:count]]))
        train.append(np.sort(samples[order[count:]]))
    parts = [
        Partition(np.concatenate(rows), offsets_of(np.array([len(row) for row in rows]))) for rows in (train, held_out)
    ]
    return Partition(parts[0].indices, parts[0].offsets, partition.features, partition.notes), parts[1]


class ClientEvaluation:
    """Evaluates on the clients' held-out samples, as the task's validation_step does."""

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
        task, recorder = client.task, client.recorder
        samples = client.data.take(index)
        recorder.reset()
        with torch.no_grad(), client.trainer.precision_plugin.val_step_context():
            for name, p in client.learned.items():
                p.copy_(x[name])
            for name, b in client.buffers_by_name.items():
                b.copy_(buffers[name])
            task.eval()
            for number, batch in enumerate(Batches(samples, self.batch_size)):
                task.validation_step(samples.transform(batch) if samples.transform else batch, number)
            task.train()
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
            smaller = self.modes.get(name, way(name)) == "min"
            worst = np.sort(-values if smaller else values)[: max(1, len(values) // 10)]
            figures |= {
                f"clients/{key}_mean": float(values.mean()),
                f"clients/{key}_mean_by_samples": float(values @ sizes / sizes.sum()),
                f"clients/{key}_deviation": float(values.std()),
                f"clients/{key}_worst_tenth": float(-worst.mean() if smaller else worst.mean()),
            }
        return figures
