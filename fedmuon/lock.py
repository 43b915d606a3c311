"""One process at a time in a run directory: a lock on a file in it, which dies with its process."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fedmuon.errors import UsageError

FILE = "run.lock"  # stays behind, empty: what counts is whether a living process holds it


class Taken(Exception):
    """Another process holds the lock."""


@contextmanager
def held(folder: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold `folder`, made where it is not. Where another process does: call `waiting` and wait for it, or raise Taken.

    Raises UsageError where it cannot be made or locked.
    """
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / FILE, os.O_RDWR | os.O_CREAT, 0o666)
            stack.callback(os.close, lock)
            _take(lock, folder, waiting)
        except OSError as error:
            raise UsageError(
                f"{folder}: cannot be made or locked ({error.strerror}); name a folder on a disk that can be written"
            ) from error
        yield


def _take(lock: int, folder: Path, waiting: Callable[[], None] | None) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if waiting is None:
            raise Taken(f"{folder}: another process is at work in it") from None
        waiting()
        fcntl.flock(lock, fcntl.LOCK_EX)
