"""Standard output that its reader may close: `fedmuon ... | head -1` prints no more, and trains to its end."""

from __future__ import annotations

import io
import os
import sys
from typing import Any


class _Closable(io.FileIO):
    """A file descriptor that becomes /dev/null once nobody reads it any more."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return len(data)


def survive_closing() -> None:
    """From now on a closed pipe behind standard output or standard error ends no run."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper) or stream.isatty():
            continue  # a terminal, a test's capture, a notebook's
        if isinstance(getattr(stream.buffer, "raw", None), _Closable):
            continue
        stream.flush()
        setattr(
            sys,
            name,
            io.TextIOWrapper(
                io.BufferedWriter(_Closable(stream.fileno(), "w", closefd=False)),
                stream.encoding,
                stream.errors,
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            ),
        )
