"""The one error a user meets: a line that names the key, its value, what is allowed and what to do."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from os.path import expanduser, isabs
from pathlib import Path

# What NumPy raises for an .npz that is damaged, or something else.
NO_ARCHIVE = (
    OSError, ValueError, TypeError, AttributeError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


class UsageError(ValueError):
    """Wrong input, found before any training. The command prints it as one line and exits with 2."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def reason(error: OSError) -> str:
    """What an operating system says of a file, in one line."""
    told = f"{error.filename}: {error.strerror or error}" if error.filename else str(error)
    return " ".join(told.split()) or type(error).__name__


def unreadable(path: str | Path, error: Exception) -> str:
    """Why NumPy cannot read a file as an .npz; of whatever is none it speaks of pickles."""
    if isinstance(error, OSError):
        return reason(error)
    if not zipfile.is_zipfile(path):
        return "no .npz archive"
    return "it holds Python objects" if "allow_pickle" in str(error) else str(error)


def where(path: str | Path) -> str:
    """ " in FOLDER", the current one, for a path that counts from there; empty for one that does not."""
    full = expanduser(path)
    return "" if isabs(full) or str(full).startswith("~") else f" in {Path.cwd()}"


def shown(value: object) -> str:
    """A value as one writes it: true, null, 0.1, [a,b], {a:b}."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(shown, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{shown(one)}' for key, one in value.items())}}}"
    return (
        {True: "true", False: "false", None: "null"}[value] if value is None or isinstance(value, bool) else str(value)
    )


def nearest(word: str, known: Iterable[str]) -> str:
    """ " (did you mean 'lenet5'?)" for the closest known word, or an empty string."""
    close = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""
