"""Faults in what a user wrote say where: the round, the hook or the samples, and the type of the error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class RoundError(RuntimeError):
    """A round failed; the message names the round and what happened in it."""


@contextmanager
def in_round(round: int) -> Iterator[None]:
    """Errors become a `RoundError` that names the round, counted from 1."""
    try:
        yield
    except Exception as error:
        raise RoundError(f"round {round}: {error}") from error


@contextmanager
def named(what: str, becomes: type[Exception] = RuntimeError) -> Iterator[None]:
    """Errors become one that tells what was called, and the type of the error."""
    try:
        yield
    except Exception as error:
        raise becomes(f"{what}: {type(error).__name__}: {error}") from error
