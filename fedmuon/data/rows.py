"""Lists of whole numbers from a file, one a client or a round: .npz or .json."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fedmuon.errors import NO_ARCHIVE, UsageError, unreadable, where


def read_arrays(path: str | Path, key: str) -> dict[str, Any]:
    """The arrays of an .npz or the members of a .json by name; a bare list there has the name "". Raises UsageError."""
    try:
        if Path(path).suffix == ".json":
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            return content if isinstance(content, dict) else {"": content}
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file}
    except FileNotFoundError:
        raise UsageError(f"{key}={path}: there is no such file{where(path)}; name an .npz or a .json") from None
    except NO_ARCHIVE as error:
        reason = str(error) if Path(path).suffix == ".json" else unreadable(path, error)
        raise UsageError(
            f"{key}={path}: cannot be read ({reason}); must be an .npz of numpy.savez, without Python objects, or a "
            "file named .json, with one row of whole numbers for each client or round"
        ) from None


def read_rows(path: str | Path, key: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(values, sizes), int64: the rows of `name`, or of the only array there is, end to end, and their lengths.

    A row is a line of a 2-D array, where -1 fills up short ones; an element of a list of lists; or what an array
    `offsets` beside a 1-D array cuts out. Raises UsageError, naming `key`, for anything else.
    """
    arrays = read_arrays(path, key)
    found = arrays.get(name, next(iter(arrays.values())) if len(arrays) == 1 else None)
    if found is None:
        raise UsageError(f"{key}={path}: has no array {name!r}; it has {', '.join(map(repr, arrays)) or 'none'}")
    try:
        if "offsets" in arrays:
            sizes = np.diff(_whole(arrays["offsets"]))
            values = _whole(found)
            if values.ndim != 1 or sizes.min(initial=0) < 0 or sizes.sum() != len(values):
                raise ValueError("offsets must rise from 0 to the number of values")
            return values, sizes
        if isinstance(found, list):
            sizes = np.array([len(row) for row in found], np.int64)
            return _whole(list(chain.from_iterable(found))).reshape(-1), sizes
        table = _whole(found)
        if table.ndim != 2:
            raise ValueError(f"the array has {table.ndim} dimensions, 1 needs `offsets` beside it")
        return table[table != -1], np.sum(table != -1, axis=1)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{key}={path}: must hold one row of whole numbers for each client or round ({error})"
        ) from None


def _whole(values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"found {array.dtype} where whole numbers belong")
    return array.astype(np.int64)
