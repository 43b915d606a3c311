"""The files of a run directory that a report opens for some figures only: are they there, and whole?"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

_PARQUET = b"PAR1"  # how a Parquet file begins and ends


def damaged(path: Path, ended: bool) -> Iterator[str]:
    """A line for each that is missing or damaged; from how files and lines begin and end, without parsing them.

    ended: whether clients.parquet, which is written at the end, has to be there
    """
    for name, whole in (("clients.jsonl", _are_objects), ("clients.parquet", _is_parquet), ("partition.npz", _is_npz)):
        try:
            if not whole(path / name):
                yield f"{name}: is damaged"
        except FileNotFoundError:
            if ended or name != "clients.parquet":
                yield f"{name}: is missing"
        except OSError as error:
            yield f"{name}: cannot be read ({error.strerror})"


def _are_objects(path: Path) -> bool:
    lines = path.read_bytes()
    count = lines.count(b"\n")
    return not lines or (
        lines[:1] == b"{" and lines.count(b"}\n") == count == 1 + lines.count(b"\n{") and lines.endswith(b"\n")
    )


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        begins, size = file.read(4), file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 4))
        return size > 8 and begins == file.read(4) == _PARQUET


def _is_npz(path: Path) -> bool:
    with path.open("rb") as file:
        return zipfile.is_zipfile(file)
