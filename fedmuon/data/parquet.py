"""Finding and checking Parquet files in a local folder, quickly: footers only, and no torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from fedmuon.errors import UsageError, nearest


def find_split(root: str | Path, split: str) -> list[Path]:
    """The Parquet files of a split, sorted: train.parquet or train-00000-of-00002.parquet and so on, in the folder
    or in its data/ as on the Hugging Face hub, or train/*.parquet.

    Raises UsageError (data.root) for a missing folder, a split without files, and shards that are missing.
    """
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise UsageError(f"data.root={root}: there is no such folder; give the folder that holds the Parquet files")
    patterns = (f"{split}.parquet", f"{split}-[0-9]*.parquet", f"data/{split}-[0-9]*.parquet", f"{split}/*.parquet")
    files = next((found for pattern in patterns if (found := sorted(folder.glob(pattern)))), [])
    if not files:
        there = sorted(entry.name for entry in folder.iterdir())[:8]
        raise UsageError(
            f"data.root={root}: no Parquet file of the split {split!r}; expected {split}.parquet or "
            f"{split}-00000-of-00001.parquet; the folder holds {', '.join(there) or 'nothing'}"
        )
    shards = re.search(r"-of-(\d+)\.parquet$", files[0].name)
    if shards and len(files) != int(shards[1]):
        raise UsageError(
            f"data.root={root}: the split {split!r} has {len(files)} of {int(shards[1])} files; download the others too"
        )
    return files


def check_parquet(root: str | Path, image: str, label: str, splits: Sequence[str] = ("train", "test")) -> None:
    """Refuse what `load_parquet` could not read, before anything heavy is imported. Raises UsageError as it does."""
    for split in splits:
        files = find_split(root, split)
        rows = 0
        for file in files:
            with open_parquet(file) as parquet:
                check_columns(parquet.schema_arrow, image, label, file)
                rows += parquet.metadata.num_rows
        if rows == 0:
            raise empty_split(files)


def open_parquet(file: Path) -> pq.ParquetFile:
    """The opened file. Raises UsageError (data.root) where there is none, or none that is whole."""
    try:
        return pq.ParquetFile(file)
    except FileNotFoundError:
        raise UsageError(f"data.root={file}: there is no such file") from None
    except (pa.ArrowException, OSError) as error:
        raise damaged(file, error) from None


def check_columns(schema: pa.Schema, image: str, label: str, file: Path) -> None:
    """Both columns are there, the images as encoded bytes, the labels as whole numbers; else UsageError."""
    for key, column in (("data.image", image), ("data.label", label)):
        if column not in schema.names:
            raise UsageError(
                f"{key}={column}: {file} has no such column{nearest(column, schema.names)}; "
                f"its columns are {', '.join(schema.names)}"
            )
    kind = schema.field(image).type
    encoded = kind.field("bytes").type if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 else kind
    if not (pa.types.is_binary(encoded) or pa.types.is_large_binary(encoded)):
        raise UsageError(
            f"data.image={image}: the column of {file} holds {kind}; allowed are encoded images (PNG, JPEG, WebP) "
            "as `datasets` stores them: a struct of bytes and path, or binary"
        )
    if not pa.types.is_integer(schema.field(label).type):
        raise UsageError(
            f"data.label={label}: the column of {file} holds {schema.field(label).type}; allowed are whole numbers "
            "from 0; encode the classes first (datasets: class_encode_column)"
        )


def damaged(file: Path, error: Exception) -> UsageError:
    return UsageError(f"data.root={file}: is not a whole Parquet file ({error}); download or write it again")


def empty_split(files: Sequence[Path]) -> UsageError:
    return UsageError(f"data.root={files[0].parent}: the split in {files[0].name} has no rows; it needs at least one")
