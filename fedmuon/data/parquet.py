"""Parquet files with the columns of the Hugging Face hub: finding, checking (footers only) and reading them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from os.path import expanduser
from pathlib import Path

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from fedmuon.data.images import Cell, Encoded, Split
from fedmuon.errors import UsageError, nearest, where
from fedmuon.listing import visible


def find_split(root: str | Path, split: str) -> list[Path]:
    """The Parquet files of a split, sorted: train.parquet or train-00000-of-00002.parquet and so on, in the folder
    or in one folder below as on the Hugging Face hub, or train/*.parquet.

    Raises UsageError (data.root) for a missing folder, a split without files, and shards that are missing.
    """
    folder = Path(expanduser(root))
    if not folder.is_dir():
        raise UsageError(
            f"data.root={root}: there is no such folder{where(root)}; give the folder that holds the Parquet files"
        )
    files = listed(folder, split)
    if not files:
        there = sorted(entry.name for entry in folder.iterdir())[:8]
        raise UsageError(
            f"data.root={root}: no Parquet file of the split {split!r}; expected {split}.parquet or "
            f"{split}-00000-of-00001.parquet; the folder holds {', '.join(there) or 'nothing'}"
        )
    if len(parents := sorted({file.parent.name for file in files})) > 1:
        raise UsageError(
            f"data.root={root}: the split {split!r} is in several folders, {', '.join(parents)}; name one of them"
        )
    shards = re.search(r"-of-(\d+)\.parquet$", files[0].name)
    if shards and len(files) != int(shards[1]):
        raise UsageError(
            f"data.root={root}: the split {split!r} has {len(files)} of {int(shards[1])} files; download the others too"
        )
    return files


def listed(folder: Path, split: str) -> list[Path]:
    """The files that `find_split` would take, unchecked, without hidden ones."""
    patterns = (f"{split}.parquet", f"{split}-[0-9]*.parquet", f"*/{split}-[0-9]*.parquet", f"{split}/*.parquet")
    for pattern in patterns:
        found = sorted(file for file in folder.glob(pattern) if all(map(visible, file.relative_to(folder).parts)))
        if found:
            return found
    return []


def check_parquet(root: str | Path, image: str, label: str, splits: Sequence[str] = ("train", "test")) -> None:
    """Refuse what `read_parquet` could not read, before anything heavy is imported. Raises UsageError as it does."""
    for split in splits:
        files = find_split(root, split)
        rows = 0
        for file in files:
            with open_parquet(file) as parquet:
                check_columns(parquet.schema_arrow, image, label, str(file))
                rows += parquet.metadata.num_rows
        if rows == 0:
            raise _empty_split(files)


def read_parquet(files: Sequence[Path], image: str, label: str) -> Split:
    """The images, still encoded, and labels of one split. Raises UsageError for unusable files and columns."""
    tables = []
    for file in files:
        with open_parquet(file) as parquet:
            check_columns(parquet.schema_arrow, image, label, str(file))
            try:
                tables.append(parquet.read(columns=[image, label]))
            except (pa.ArrowException, OSError) as error:
                raise _damaged(file, error) from None
    try:
        table = pa.concat_tables(tables)
    except pa.ArrowException as error:
        raise UsageError(f"data.root={files[0].parent}: the files have different columns ({error})") from None
    if table.num_rows == 0:
        raise _empty_split(files)
    return table_split(table, image, label)


def table_split(table: pa.Table, image: str, label: str) -> Split:
    """A split from an Arrow table; class names are in the metadata of `datasets`. Raises UsageError (data.label)."""
    labels = table[label]
    if labels.null_count:
        raise UsageError(f"data.label={label}: {labels.null_count} of {len(labels)} rows have no label; remove them")
    column = table[image]

    def cells(start: int, stop: int) -> list[Cell]:
        rows = column.slice(start, stop - start).to_pylist()
        return [(row.get("bytes") or row.get("path")) if isinstance(row, dict) else row for row in rows]

    return Split(
        images=Encoded(table.num_rows, cells, lambda row: f"data.image={image}: row {row}"),
        labels=np.asarray(labels.to_pylist()) if _is_text(labels.type) else labels.to_numpy(),
        name=f"data.label={label}",
        classes=_declared(table.schema, label),
    )


def _declared(schema: pa.Schema, label: str) -> tuple[str, ...] | None:
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = features[label].get("names")
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return tuple(str(name) for name in names) if names else None


def open_parquet(file: Path) -> pq.ParquetFile:
    """The opened file. Raises UsageError (data.root) where there is none, or none that is whole."""
    try:
        return pq.ParquetFile(file)
    except FileNotFoundError:
        raise UsageError(f"data.root={file}: there is no such file") from None
    except (pa.ArrowException, OSError) as error:
        raise _damaged(file, error) from None


def check_columns(schema: pa.Schema, image: str, label: str, where: str) -> None:
    """Both columns are there, the images encoded, the labels whole numbers or texts; else UsageError."""
    for key, column in (("data.image", image), ("data.label", label)):
        if column not in schema.names:
            raise UsageError(
                f"{key}={column}: {where} has no such column{nearest(column, schema.names)}; "
                f"its columns are {', '.join(schema.names)}"
            )
    kind = schema.field(image).type
    encoded = kind.field("bytes").type if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 else kind
    if not (pa.types.is_binary(encoded) or pa.types.is_large_binary(encoded)):
        raise UsageError(
            f"data.image={image}: the column of {where} holds {kind}; allowed are encoded images (PNG, JPEG, WebP) "
            "as `datasets` stores them: a struct of bytes and path, or binary"
        )
    kind = schema.field(label).type
    if not (pa.types.is_integer(kind) or _is_text(kind)):
        raise UsageError(
            f"data.label={label}: the column of {where} holds {kind}; allowed are whole numbers from 0, or class names"
        )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _damaged(file: Path, error: Exception) -> UsageError:
    return UsageError(f"data.root={file}: is not a whole Parquet file ({error}); download or write it again")


def _empty_split(files: Sequence[Path]) -> UsageError:
    return UsageError(f"data.root={files[0].parent}: the split in {files[0].name} has no rows; it needs at least one")
