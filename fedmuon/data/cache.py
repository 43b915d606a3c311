"""Decoded data sets on disk, so that they are decoded once: FEDMUON_CACHE, else the platform's cache folder.

An entry is one safetensors file. Entries are written whole or not at all, and checked by a checksum when they are read;
what cannot be read is made again, and a folder that cannot be written costs only time. Above `LIMIT` bytes those that
have not been used for longest go. To clear the cache, delete its files.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from os.path import expanduser
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedmuon import rundir

LIMIT = 16 * 2**30
_FORMAT = 1  # to be raised whenever the same files decode to something else
_DAY = 86_400.0


def folder() -> Path:
    """The cache folder: FEDMUON_CACHE, ~/.cache/fedmuon (XDG_CACHE_HOME), ~/Library/Caches/fedmuon or LOCALAPPDATA.

    Where there is no home, one that cannot be made.
    """
    given = os.environ.get("FEDMUON_CACHE")
    base = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME")
    if sys.platform == "darwin" or not base:
        base = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    path = expanduser(given or f"{base}/fedmuon")
    return Path(os.devnull, path) if path.startswith("~") else Path(path)


def entry(identity: Any) -> Path:
    """The file of what `identity`, plain content, describes completely."""
    text = json.dumps([_FORMAT, identity], sort_keys=True)
    return folder() / f"{sha256(text.encode()).hexdigest()[:32]}.safetensors"


def load(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The tensors, mapped into memory, and the figures of an entry; None where there is none that is whole."""
    try:
        with safe_open(file, framework="pt") as stored:
            facts = json.loads(stored.metadata()["facts"])
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        if _checksums(tensors) != facts.pop("checksums"):
            return None
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError):
        return None
    with suppress(OSError):
        os.utime(file)  # the order in which entries go
    return tensors, facts


def save(file: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write an entry atomically, then keep the folder below `LIMIT`. Does nothing where that is not possible."""
    if sum(tensor.nbytes for tensor in tensors.values()) > LIMIT:
        return
    written = {"facts": json.dumps({**facts, "checksums": _checksums(tensors)})}
    with suppress(OSError, SafetensorError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with rundir.replacing(file) as beside:
            save_file(dict(tensors), beside, metadata=written)
        _prune(file)


def _prune(keep: Path) -> None:
    for part in keep.parent.glob(".*.safetensors.*"):  # of processes that were killed
        if part.stat().st_mtime < time.time() - _DAY:
            part.unlink()
    entries = sorted(((f.stat().st_mtime, f) for f in keep.parent.glob("*.safetensors") if f != keep), reverse=True)
    total = keep.stat().st_size
    for _, file in entries:
        total += file.stat().st_size
        if total > LIMIT:
            file.unlink()


def _checksums(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    return {name: zlib.crc32(tensor.numpy().data) for name, tensor in tensors.items()}
