"""What the clients of a round send and are sent, in bytes, by key of the metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from torch.optim import SGD, Optimizer

from fedmuon.comm import payload
from fedmuon.server import Server


class Traffic:
    """Counts by what the server declares to send and to receive, and by who was in which cohort."""

    def __init__(self, server: Server, cohort: Callable[[int], np.ndarray]) -> None:
        self.server, self.attendance = server, Attendance(cohort, server.horizon)

    def down(self, members: Sequence[int], round: int, optimizer: Optimizer) -> dict[str, float]:
        """Of the clients that are sent the model of a round (0, 1, ...); `optimizer` has made it."""
        server = self.server
        ago = [self.attendance.ago(client, round) for client in members]
        figures: dict[str, float] = {"comm/down_bytes": int(sum(map(server.down_bytes, ago)))}
        if server.down.compresses:
            figures["comm/down_bytes_before"] = len(ago) * server.down.bytes_before
        if "delta_g" in server.states:
            figures["comm/down_bytes_derivable"] = ago.count(1) * self._derivable(optimizer)
        return figures

    def up(self, answers: int) -> dict[str, float]:
        """Of so many clients that answered."""
        up = self.server.up
        before = {"comm/up_bytes_before": answers * up.bytes_before} if up.compresses else {}
        return {"comm/up_bytes": answers * up.bytes, **before}

    def _derivable(self, optimizer: Optimizer) -> int:
        """Bytes of G that a client of the last round could do without.

        It holds the last x; where the server then stepped along the plain mean of the changes, all clients took K local
        steps at the rate eta, and x travels as it is, G is a multiple of the difference of the two models.
        """
        server = self.server
        bare = isinstance(optimizer, SGD) and not optimizer.defaults["momentum"] + optimizer.defaults["weight_decay"]
        known = bare and server.even and not server.down.coded.get("x") and server.algorithm.steps_along_the_mean
        return payload([server.states["delta_g"]]) if known else 0


class Attendance:
    """How many rounds ago a client was last in the cohort: from the cohorts alone, at most `horizon` rounds back."""

    def __init__(self, cohort: Callable[[int], np.ndarray], horizon: int) -> None:
        self.cohort, self.horizon = cohort, horizon
        self._members: dict[int, frozenset[int]] = {}

    def ago(self, client: int, round: int) -> float:
        """1 for a client of the round before; infinite beyond the horizon and for one that was in no cohort."""
        return next((n for n in range(1, min(self.horizon, round) + 1) if client in self._of(round - n)), math.inf)

    def _of(self, round: int) -> frozenset[int]:
        if round not in self._members:
            self._members = {r: m for r, m in self._members.items() if r >= round - self.horizon}
            self._members[round] = frozenset(int(client) for client in self.cohort(round))
        return self._members[round]
