"""AdamW on every parameter of a client; with shared moments and alignment it is FedPAC's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from fedmuon.algorithms.adamw import AdamW
from fedmuon.algorithms.algorithm import Algorithm, check_slots
from fedmuon.constraints import bounded


@dataclass(frozen=True)
class LocalAdamW(AdamW, Algorithm):
    """x <- x - eta lambda x - eta [(1 - a) d + a G], d the direction of `AdamW`; shapes [C, ...].

    share  slots among "m" and "v" that clients send and the server averages, so that the next round's clients start
           from them instead of from zero. With both, and alignment, this is FedPAC with AdamW (arXiv 2602.19271); with
           none and a = 0 the usual baseline Local AdamW.

    An average that came from the server is corrected by the steps of all rounds (t + k), a fresh one by this round's
    (k): dividing a warm v by 1 - beta2 would make it a thousand times too large.
    """

    positive: ClassVar[tuple[str, ...]] = ("v",)

    weight_decay: float = bounded(0.01, low=0)
    share: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_slots(self.share, self.slots)

    @property
    def shared(self) -> tuple[str, ...]:
        return tuple(self.share)
