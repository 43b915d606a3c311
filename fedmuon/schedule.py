"""The client learning rate as a function of the round, and of nothing else."""

from __future__ import annotations

from math import cos, pi


def remark(schedule: str, rounds: int, of: int) -> str | None:
    """What a person should know of `of` rounds under a schedule of `rounds`, such as those of a run that goes on."""
    if schedule != "cosine" or of <= rounds:
        return None
    which = f"round {of} trains" if of == rounds + 1 else f"rounds {rounds + 1} to {of} train"
    return f"local.schedule=cosine: {which} at rate 0, it ends with local.schedule_rounds={rounds} (kept by resume=)"


def factor(
    schedule: str, round: int, *, rounds: int, warmup: int = 0, step_every: int = 0, step_factor: float = 1.0
) -> float:
    """What `local.lr` is multiplied by in round 0, 1, ... of `rounds`; constant within a round.

    constant  1
    cosine    (1 + cos(pi r / rounds)) / 2; 0 from r = rounds on, where a run that is continued past its end arrives
    step      step_factor ** (r // step_every)
    The first `warmup` rounds are scaled by (r + 1) / warmup.
    """
    value = 1.0
    if schedule == "cosine":
        value = (1 + cos(pi * min(round / rounds, 1.0))) / 2
    elif schedule == "step":
        value = step_factor ** (round // step_every)
    return value * min(1.0, (round + 1) / warmup) if warmup else value
