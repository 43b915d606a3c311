"""What is printed for people, with rich."""

from __future__ import annotations

from typing import Any

from rich.console import Console

WIDE = 10_000  # columns of a file or a pipe, which has no edge to wrap or to cut at


def console(**options: Any) -> Console:
    """A console that prints text as it is: the brackets and colons of an override are no markup."""
    made = Console(markup=False, emoji=False, **options)
    if not (made.is_terminal or made.is_jupyter):
        made.width = WIDE
    return made


def size(count: float) -> str:
    """Bytes for people: 1.2 MB is 1,200,000 bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
