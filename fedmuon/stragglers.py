"""Clients that are slow or do not answer, simulated. Nothing here imports torch."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedmuon.config import Stragglers
from fedmuon.randomness import stream


def over_selected(cohort: int, clients: int, factor: float) -> int:
    """How many clients are asked so that `cohort` answers may be hoped for; never more than there are."""
    return min(clients, math.ceil(round(cohort * factor, 9)))  # 1.1 * 100 is above 110


def answered(config: Stragglers, seed: int, round: int, steps: Mapping[int, int], wanted: int) -> dict[int, int]:
    """The local steps of every client whose answer counts, in the order of `steps` (client -> steps it is asked for).

    A client's step takes exp(sigma z) units of time, z normal and its own for the whole run. It fails with probability
    `failure`, anew in every round. After `deadline` units the server waits no longer: late clients are left out, or
    send what they have (late=partial). Of those in time, the `wanted` fastest count; the lot decides between equals. A
    pure function of its arguments.
    """
    done: dict[int, int] = {}
    times: dict[int, float] = {}
    for client, count in steps.items():
        pace = math.exp(config.sigma * stream(seed, "pace", 0, client).standard_normal()) if config.sigma else 1.0
        if config.failure and stream(seed, "failure", round, client).random() < config.failure:
            continue
        if config.deadline is not None and count * pace > config.deadline:
            count = int(config.deadline / pace) if config.late == "partial" else 0
        if count:
            done[client], times[client] = count, count * pace
    lots = dict(zip(done, stream(seed, "ties", round).permutation(len(done)), strict=True))
    fastest = set(sorted(done, key=lambda client: (times[client], lots[client]))[:wanted])
    return {client: count for client, count in done.items() if client in fastest}
