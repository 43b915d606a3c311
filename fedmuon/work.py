"""What the clients of a round do: a function of the round, so that it can be made while those of the last one train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedmuon.config import Aggregation, Local, Stragglers
from fedmuon.data.batching import batches
from fedmuon.data.partition import Partition
from fedmuon.engines.engine import Assignment
from fedmuon.plan import Plan, plan
from fedmuon.randomness import torch_seed


@dataclass(frozen=True)
class Work:
    """Plans and assignments of rounds 0, 1, ... from what does not change between them."""

    partition: Partition
    cohort: Callable[[int], np.ndarray]
    local: Local
    aggregation: Aggregation
    stragglers: Stragglers
    wanted: int
    seed: int

    def of(self, round: int) -> tuple[Plan, dict[int, Assignment]]:
        """The plan of a round and the work of each client that trains in it, without what the client keeps."""
        planned = plan(
            [int(client) for client in self.cohort(round)], self.partition, local=self.local,
            aggregation=self.aggregation, stragglers=self.stragglers, wanted=self.wanted, seed=self.seed, round=round,
        )  # fmt: skip
        return planned, {client: self._assignment(round, client, steps) for client, steps in planned.steps.items()}

    def _assignment(self, round: int, client: int, steps: int) -> Assignment:
        local, samples = self.local, self.partition[client]
        return Assignment(
            client=client,
            batches=batches(
                self.seed,
                round,
                client,
                samples=samples,
                batch_size=local.batch_size,
                steps=steps,
                drop_last=local.drop_last,
            ),
            samples=samples,
            seed=torch_seed(self.seed, "training", round, client),
            features=self.partition.features_of(client),
        )
