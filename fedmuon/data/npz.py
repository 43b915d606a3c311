"""NumPy archives of images: x_train, y_train, x_test, y_test in one .npz, as Keras distributes its data sets."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from fedmuon.data.images import Encoded, Split
from fedmuon.errors import NO_ARCHIVE, UsageError


def check_npz(file: Path, test: bool = True) -> None:
    """Refuse what `read_npz` could not read, from the arrays' headers alone.

    Raises UsageError (data.root) for a file that is not whole, missing arrays, other types or shapes, and empty splits.
    """
    headers = _headers(file)
    for split in _splits(test):
        for name in (f"x_{split}", f"y_{split}"):
            if name not in headers:
                without = "; data.test_split=null goes without" if split == "test" else ""
                raise UsageError(
                    f"data.root={file}: has no array {name!r}; expected x_train, y_train, x_test and y_test; it holds "
                    f"{', '.join(headers) or 'nothing'}{without}"
                )
        (shape, dtype), (labels, kind) = headers[f"x_{split}"], headers[f"y_{split}"]
        if dtype != np.uint8 or len(shape) not in (3, 4) or (len(shape) == 4 and shape[3] not in (1, 3)):
            raise UsageError(
                f"data.root={file}: x_{split} is {dtype} {list(shape)}; allowed are uint8 images [n, height, width] or "
                "[n, height, width, channels] with 1 or 3 channels"
            )
        if kind.kind not in "iuU" or labels not in ((shape[0],), (shape[0], 1)):
            raise UsageError(
                f"data.root={file}: y_{split} is {kind} {list(labels)}; allowed are {shape[0]} whole numbers from 0 "
                f"or class names, one for each image of x_{split}"
            )
        if 0 in shape:
            raise UsageError(f"data.root={file}: x_{split} {list(shape)} has no pixels; it needs at least one image")


def read_npz(file: Path, test: bool = True) -> list[Split]:
    """The splits. Raises UsageError as `check_npz` does, and for contents that are damaged."""
    check_npz(file, test)
    try:
        with np.load(file) as arrays:
            return [_split(file, split, arrays[f"x_{split}"], arrays[f"y_{split}"]) for split in _splits(test)]
    except NO_ARCHIVE as error:
        raise _damaged(file, error) from None


def _split(file: Path, split: str, images: np.ndarray, labels: np.ndarray) -> Split:
    pixels = images[..., 0] if images.shape[-1] == 1 and images.ndim == 4 else images
    return Split(
        images=Encoded(
            len(pixels),
            lambda start, stop: list(pixels[start:stop]),
            lambda row: f"data.root={file}: x_{split}[{row}]",
        ),
        labels=labels.reshape(-1),
        name=f"data.root={file}: y_{split}",
    )


def _splits(test: bool) -> tuple[str, ...]:
    return ("train", "test") if test else ("train",)


def _headers(file: Path) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and type of every array, without its contents."""
    try:
        with zipfile.ZipFile(file) as archive:
            found = {}
            for name in archive.namelist():
                with archive.open(name) as array:
                    major, _ = np.lib.format.read_magic(array)
                    read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
                    shape, _, dtype = read(array)
                found[name.removesuffix(".npy")] = (shape, dtype)
            return found
    except NO_ARCHIVE as error:
        raise _damaged(file, error) from None


def _damaged(file: Path, error: Exception) -> UsageError:
    return UsageError(f"data.root={file}: is not a whole .npz ({error}); download or write it again")
