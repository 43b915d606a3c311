"""Small image data sets in every format that is read."""

import io
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

FEATURES = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})


def pixels(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def png(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()


def write_parquet(
    file: Path, images, labels, features: datasets.Features | None = FEATURES, columns=("image", "label")
) -> Path:
    """`images` are arrays, encoded bytes, or None; without features the file has no `datasets` metadata."""
    cells = [
        {"bytes": png(i) if isinstance(i, np.ndarray) else i, "path": None} if i is not None else None for i in images
    ]
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    labels = pa.array(labels) if len(labels) else pa.array([], pa.int64())
    table = pa.table({columns[0]: pa.array(cells, kind), columns[1]: labels})
    if features:
        table = table.replace_schema_metadata(features.arrow_schema.metadata)
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, file)
    return file


def write_folder(root: Path, split: str, images, labels, names=("cat", "dog")) -> None:
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        file = root / split / names[label] / f"{number:03}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png(image))


def write_npz(file: Path, train, test, **more) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, **{"x_train": train[0], "y_train": train[1], "x_test": test[0], "y_test": test[1], **more})
    return file
