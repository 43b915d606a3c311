"""How every command begins and ends, whatever it does in between."""

from __future__ import annotations

import os
import signal
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from fedmuon import streams
from fedmuon.errors import UsageError, reason

AGAIN = "interrupted; the same command goes on"


class Parser(ArgumentParser):
    """A command's options; a wrong one is told in one line."""

    def error(self, message: str) -> NoReturn:
        leave(self.prog, 2, f"{message}; {self.prog} --help says what there is")


@contextmanager
def command(name: str, prints: bool = False) -> Iterator[None]:
    """All that the command `name` does, its options included. prints: that is what it is for, and must not be lost."""
    with ending(name):
        prepare_process()
        yield
        if prints:
            streams.check()


@contextmanager
def ending(name: str) -> Iterator[None]:
    """Exit with one line on standard error: 2 for wrong input and files that cannot be used, 130 where interrupted."""
    try:
        yield
    except (UsageError, OSError) as error:
        if _interruption.came:  # and a library made something else of it
            leave(name, 130, "interrupted")
        leave(name, 2, reason(error) if isinstance(error, OSError) else str(error))
    except KeyboardInterrupt as error:
        leave(name, 130, str(error) or "interrupted")


def leave(name: str, code: int, message: str) -> NoReturn:
    print(f"{name}: {message}", file=sys.stderr, flush=True)
    sys.exit(code)


def prepare_process() -> None:
    """What a command's process and those of launchers need before anything heavy is imported."""
    streams.survive()
    try:
        here = str(Path.cwd())
    except FileNotFoundError:
        raise UsageError("the current folder is no longer there; change to another one") from None
    if here not in sys.path:
        sys.path.append(here)  # as for `python -m fedmuon`: what is one's own in the current folder can be imported
    # a waiting thread sleeps instead of spinning: on a machine that others use as well, spinning costs ten times
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if threading.current_thread() is threading.main_thread():
        _interruption.came = False
        # to be ended, or to lose the session, is a Ctrl-C; what is ignored, as under nohup, stays so
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, _interruption)


class _Interruption:
    """Ctrl-C as Python has it, and remembered: imports of C code and destructors swallow every exception."""

    came = False

    def __call__(self, number: int, frame: Any) -> NoReturn:
        self.came = True
        raise KeyboardInterrupt


_interruption = _Interruption()


def heed_interruption() -> None:
    """Raise the KeyboardInterrupt of this command that came and was swallowed."""
    if _interruption.came:
        raise KeyboardInterrupt
