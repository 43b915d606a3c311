"""An image classification data set as tensors that fit on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import datasets  # type: ignore[import-untyped]
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import torch
from PIL.Image import Image
from torch import Tensor

from fedmuon.data.parquet import check_columns, damaged, empty_split, open_parquet
from fedmuon.errors import UsageError

_CHUNK = 1000  # images decoded at a time: bounds the memory above that of the tensor itself
_MODES = {1: "L", 3: "RGB"}
_BROKEN = (OSError, ValueError, SyntaxError)  # what Pillow raises for bytes that are no image, or half of one


@dataclass
class ImageSet:
    """images: uint8 [n, channels, height, width]; labels: int64 [n]."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


def load_parquet(
    files: Sequence[Path], image: str, label: str, channels: int | None = None
) -> tuple[ImageSet, tuple[str, ...]]:
    """Decode the Parquet files of one split; returns the images and the class names.

    image, label: column names. channels: 1 (grey) or 3 (RGB) converts; None takes what the first image has.
    The names come from the `datasets` features in the files, else they are "0", "1", ... up to the largest label.
    Raises UsageError for files that are missing or damaged, missing columns, an empty split, images that cannot be
    decoded or differ in size, and labels that are missing, negative or beyond the class names.
    """
    if channels is not None and channels not in _MODES:
        raise UsageError(f"data.channels={channels}: must be 1 (grey), 3 (RGB) or null (as the files have it)")
    table = _read(files, image, label)
    rows = datasets.Dataset(table)  # in memory: no copy of the data set in a cache folder
    labels, names = _labels(rows, label)
    own_mode = _mode_of_first(rows, image)
    mode = _MODES[channels] if channels else own_mode
    rows = rows.cast_column(image, datasets.Image(mode=mode)).with_format("numpy", columns=[image])
    return ImageSet(_decode(rows, image), torch.from_numpy(labels)), names


def _read(files: Sequence[Path], image: str, label: str) -> pa.Table:
    tables = []
    for file in files:
        with open_parquet(file) as parquet:
            check_columns(parquet.schema_arrow, image, label, file)
            try:
                tables.append(parquet.read(columns=[image, label]))
            except (pa.ArrowException, OSError) as error:
                raise damaged(file, error) from None
    try:
        table = pa.concat_tables(tables)
    except pa.ArrowException as error:
        raise UsageError(f"data.root={files[0].parent}: the files have different columns ({error})") from None
    if table.num_rows == 0:
        raise empty_split(files)
    return table


def _labels(rows: datasets.Dataset, label: str) -> tuple[np.ndarray, tuple[str, ...]]:
    column = rows.data[label]
    if column.null_count:
        raise UsageError(f"data.label={label}: {column.null_count} of {len(column)} rows have no label; remove them")
    labels = column.to_numpy().astype(np.int64)
    feature = rows.features[label]
    if isinstance(feature, datasets.ClassLabel):
        names = tuple(feature.names)
    else:
        names = tuple(str(number) for number in range(int(labels.max()) + 1))
    wrong = np.flatnonzero((labels < 0) | (labels >= len(names)))
    if len(wrong):
        allowed = f"0 to {len(names) - 1}" if isinstance(feature, datasets.ClassLabel) else "0 and above"
        raise UsageError(
            f"data.label={label}: row {wrong[0]} has the label {labels[wrong[0]]}; allowed is {allowed}; "
            f"{len(wrong)} of {len(labels)} rows are wrong: remove or renumber them (-1 usually means unlabelled)"
        )
    return labels, names


def _mode_of_first(rows: datasets.Dataset, image: str) -> str:
    """Grey stays grey, everything else becomes RGB; more than 8 bits a channel would be clipped, so it is refused."""
    try:
        first: Image | None = rows.cast_column(image, datasets.Image())[0][image]
    except _BROKEN as error:
        raise _undecodable(image, 0, error) from None
    if first is None:
        raise _no_image(image, 0)
    if first.mode[0] in "IF":
        raise UsageError(
            f"data.image={image}: row 0 has the pixel type {first.mode}; allowed are 8 bits a channel; convert first"
        )
    return "L" if first.mode in ("1", "L") else "RGB"


def _decode(rows: datasets.Dataset, image: str) -> Tensor:
    images: np.ndarray | None = None
    for start in range(0, len(rows), _CHUNK):
        try:
            chunk = rows[start : start + _CHUNK][image]
        except _BROKEN as error:
            raise _undecodable(image, start, error) from None
        if images is None:
            images = np.empty((len(rows), *np.shape(chunk[0])), np.uint8)
        for row, pixels in enumerate(chunk, start):
            if pixels is None:
                raise _no_image(image, row)
            if pixels.shape != images.shape[1:]:
                raise _wrong_size(image, row, pixels.shape, images.shape[1:])
            images[row] = pixels
    assert images is not None
    tensor = torch.from_numpy(images)
    return tensor.unsqueeze(1) if tensor.dim() == 3 else tensor.permute(0, 3, 1, 2).contiguous()


def _no_image(image: str, row: int) -> UsageError:
    return UsageError(f"data.image={image}: row {row} has no image; remove the row")


def _wrong_size(image: str, row: int, shape: tuple[int, ...], first: tuple[int, ...]) -> UsageError:
    return UsageError(
        f"data.image={image}: row {row} is {shape[1]} x {shape[0]} pixels, row 0 is {first[1]} x {first[0]}; "
        "all images must have one size; resize them first"
    )


def _undecodable(image: str, row: int, error: Exception) -> UsageError:
    return UsageError(
        f"data.image={image}: an image at or after row {row} cannot be decoded ({error}); write the file again"
    )
