"""One process at a time in a run directory: a lock on a file in it, which dies with its process."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

FILE = "run.lock"  # stays behind, empty: what counts is whether a living process holds it


class Taken(Exception):
    """Another process holds the lock."""


@contextmanager
def held(folder: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold `folder`, which exists. Where another process does: call `waiting` and wait for it, or raise Taken."""
    lock = os.open(folder / FILE, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is None:
                raise Taken(f"{folder}: another process is at work in it") from None
            waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
