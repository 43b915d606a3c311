"""The plan of a round: who trains, for how many local steps, with what weight and at what rate. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedmuon.config import Aggregation, Local, Stragglers
from fedmuon.data.batching import steps_of
from fedmuon.data.partition import Partition
from fedmuon.schedule import factor
from fedmuon.stragglers import answered


@dataclass(frozen=True)
class Plan:
    """A round, a function of the configuration and the round alone.

    members  the cohort, in order      steps    local steps K_i of those whose answer counts
    weights  their p_i, which add up to 1;  share  of their weight in the whole population's
    factor   of every base rate
    """

    members: tuple[int, ...]
    steps: dict[int, int]
    weights: dict[int, float]
    share: float
    factor: float


def plan(
    members: Sequence[int], partition: Partition, *, local: Local, aggregation: Aggregation, stragglers: Stragglers,
    wanted: int, seed: int, round: int,
) -> Plan:  # fmt: skip
    """Plan a round (0, 1, ...) for these clients; `wanted` answers count. Clients without samples have no weight."""
    steps = None if local.epochs is not None else local.steps
    asked = {
        client: steps_of(len(partition[client]), local.batch_size, steps, local.epochs, local.drop_last)
        for client in members
    }
    done = answered(stragglers, seed, round, {c: k for c, k in asked.items() if k}, wanted)
    by_samples = aggregation.weights == "samples"
    raw = {client: float(len(partition[client])) if by_samples else 1.0 for client in done}
    total = sum(raw.values())
    everyone = float(partition.sizes.sum() if by_samples else (partition.sizes > 0).sum())
    rate = factor(
        local.schedule,
        round,
        rounds=local.schedule_rounds,
        warmup=local.warmup,
        step_every=local.step_every,
        step_factor=local.step_factor,
    )
    weights = {client: weight / total for client, weight in raw.items()}
    return Plan(tuple(members), done, weights, total / (everyone or 1.0), rate)
