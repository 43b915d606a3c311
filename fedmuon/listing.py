"""What lies in a folder: links are followed, hidden entries left out."""

from __future__ import annotations

import os
from collections.abc import Iterator


def visible(name: str) -> bool:
    """Whether an entry is meant to be seen: neither hidden, such as macOS's ._x.png, nor its folder __MACOSX."""
    return not name.startswith(".") and name != "__MACOSX"


def walk(folder: str | os.PathLike[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """`os.walk`, sorted, of what is visible, through links; a folder that links lead to again is passed over."""
    seen: set[str] = set()
    for path, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(path)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        links = {name: os.path.islink(os.path.join(path, name)) for name in filter(visible, folders)}
        folders[:] = sorted(sorted(links), key=links.__getitem__)  # a folder comes before a link to it
        yield path, folders, sorted(filter(visible, files))
