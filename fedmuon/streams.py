"""Standard output and standard error that end no run: what cannot be printed is left out.

A reader may leave (`fedmuon ... | head -1`), a disk be full, a terminal closed, an encoding lack a sign.
"""

from __future__ import annotations

import io
import sys
from contextlib import suppress
from typing import Any


class _Unfailing(io.FileIO):
    """A file descriptor; what it does not take is lost, and where nobody has left, `error` says why."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or len(data)  # None: it would have to wait
        except OSError as error:
            self.error = None if isinstance(error, BrokenPipeError) else error
            return len(data)


def check() -> None:
    """Raise the OSError for which something that was printed is lost; none where its reader has left."""
    with suppress(AttributeError):  # another stream, or none
        sys.stdout.flush()
        if error := sys.stdout.buffer.raw.error:  # type: ignore[union-attr, attr-defined]
            raise error


def survive() -> None:
    """From now on nothing that is printed raises; signs that an encoding lacks become question marks."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or stream is not getattr(sys, f"__{name}__"):
            continue  # closed, a test's capture, a notebook's, or done already
        stream.flush()
        setattr(
            sys,
            name,
            io.TextIOWrapper(
                io.BufferedWriter(_Unfailing(stream.fileno(), "w", closefd=False)),
                stream.encoding,
                "replace",
                line_buffering=stream.line_buffering or stream.write_through,
            ),
        )
