"""Parquet image sets: what is read, and one line for everything that cannot be."""

import io
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from fedmuon.data.images import load_parquet
from fedmuon.data.parquet import check_parquet, find_split
from fedmuon.errors import UsageError

FEATURES = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})


def pixels(count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)


def png(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()


def write(file: Path, images: list, labels: list, features: datasets.Features | None = FEATURES) -> Path:
    """`images` are arrays, raw bytes, or None; without features the file has no `datasets` metadata."""
    cells = [
        {"bytes": png(i) if isinstance(i, np.ndarray) else i, "path": None} if i is not None else None for i in images
    ]
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    table = pa.table({"image": pa.array(cells, kind), "label": pa.array(labels, pa.int64())})
    if features:
        table = table.replace_schema_metadata(features.arrow_schema.metadata)
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, file)
    return file


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 3)])
def test_pixels_labels_and_names_come_out_as_they_went_in(tmp_path, shape):
    arrays = pixels(5, *shape)
    files = [
        write(tmp_path / "a.parquet", list(arrays[:3]), [0, 1, 1]),
        write(tmp_path / "b.parquet", list(arrays[3:]), [0, 1]),
    ]
    data, names = load_parquet(files, "image", "label", None)
    expected = arrays[:, None] if len(shape) == 2 else arrays.transpose(0, 3, 1, 2)
    assert data.images.dtype == torch.uint8 and data.images.is_contiguous()
    assert np.array_equal(data.images.numpy(), expected)
    assert data.labels.tolist() == [0, 1, 1, 0, 1] and data.labels.dtype == torch.int64
    assert names == ("cat", "dog") and len(data) == 5


def test_channels_convert_and_names_are_numbers_without_features(tmp_path):
    grey, colour = pixels(2, 4, 4), pixels(2, 4, 4, 3)
    file = write(tmp_path / "grey.parquet", list(grey), [0, 2], features=None)
    data, names = load_parquet([file], "image", "label", 3)
    assert np.array_equal(data.images.numpy(), np.repeat(grey[:, None], 3, axis=1)) and names == ("0", "1", "2")
    file = write(tmp_path / "colour.parquet", list(colour), [0, 1])
    data, _ = load_parquet([file], "image", "label", 1)
    luma = colour @ np.array([0.299, 0.587, 0.114])
    assert np.abs(data.images[:, 0].numpy() - luma).max() <= 1
    with pytest.raises(UsageError, match=r"^data\.channels=2: must be 1"):
        load_parquet([file], "image", "label", 2)


def test_more_images_than_a_chunk(tmp_path):
    arrays = pixels(1003, 2, 2)
    data, _ = load_parquet([write(tmp_path / "a.parquet", list(arrays), [0] * 1003)], "image", "label", 1)
    assert np.array_equal(data.images[:, 0].numpy(), arrays)


def test_binary_columns_are_images_too(tmp_path):
    arrays = pixels(2, 3, 3)
    table = pa.table({"image": [png(array) for array in arrays], "label": [0, 1]})
    pq.write_table(table, tmp_path / "train.parquet")
    data, _ = load_parquet([tmp_path / "train.parquet"], "image", "label", None)
    assert np.array_equal(data.images[:, 0].numpy(), arrays)


@pytest.mark.parametrize(
    ("images", "labels", "features", "message"),
    [
        ([], [], FEATURES, r"data\.root=.*t\.parquet has no rows"),
        (
            [pixels(1, 4, 4)[0], pixels(1, 5, 4)[0]],
            [0, 1],
            FEATURES,
            r"data\.image=image: row 1 is 4 x 5 .* row 0 is 4 x 4",
        ),
        ([pixels(1, 4, 4)[0], None], [0, 1], FEATURES, r"data\.image=image: row 1 has no image"),
        ([None, pixels(1, 4, 4)[0]], [0, 1], FEATURES, r"data\.image=image: row 0 has no image"),
        ([b"no image", b""], [0, 1], FEATURES, r"data\.image=image: an image at or after row 0 cannot be decoded"),
        ([pixels(1, 4, 4)[0], b"no"], [0, 1], FEATURES, r"data\.image=image: an image at or after row 0 cannot be"),
        ([png(pixels(1, 64, 64)[0])[:900]], [0], FEATURES, r"data\.image=image: an image .* cannot be decoded"),
        ([np.zeros((4, 4), np.uint16)], [0], FEATURES, r"data\.image=image: row 0 has the pixel type I"),
        (
            list(pixels(3, 4, 4)),
            [0, 2, 5],
            FEATURES,
            r"data\.label=label: row 1 has the label 2; allowed is 0 to 1; 2 of 3",
        ),
        (list(pixels(2, 4, 4)), [0, -1], FEATURES, r"data\.label=label: row 1 has the label -1; allowed is 0 to 1"),
        (list(pixels(2, 4, 4)), [-1, 3], None, r"data\.label=label: row 0 has the label -1; allowed is 0 and above"),
        (list(pixels(2, 4, 4)), [0, None], FEATURES, r"data\.label=label: 1 of 2 rows have no label"),
    ],
)
def test_contents_that_cannot_be_used_are_named(tmp_path, images, labels, features, message):
    file = write(tmp_path / "t.parquet", images, labels, features)
    with pytest.raises(UsageError, match=message) as caught:
        load_parquet([file], "image", "label", None)
    assert "\n" not in str(caught.value)


def load(root: Path, image: str = "image", label: str = "label") -> None:
    load_parquet(find_split(root, "train"), image, label, None)


def check(root: Path, image: str = "image", label: str = "label") -> None:
    check_parquet(root, image, label, splits=["train"])


@pytest.mark.parametrize("read", [load, check])
def test_the_fast_check_and_the_loader_refuse_the_same(tmp_path, read):
    with pytest.raises(UsageError, match=r"^data\.root=.*absent: there is no such folder"):
        read(tmp_path / "absent")
    with pytest.raises(UsageError, match=r"^data\.root=.*no Parquet file of the split 'train'.* holds nothing"):
        read(tmp_path)
    file = write(tmp_path / "train.parquet", list(pixels(4, 9, 9)), [0, 1, 0, 1])
    read(tmp_path)
    with pytest.raises(UsageError, match=r"^data\.image=imag: .*did you mean 'image'.*columns are image, label"):
        read(tmp_path, image="imag")
    with pytest.raises(UsageError, match=r"^data\.label=fine_label: .*columns are image, label"):
        read(tmp_path, label="fine_label")
    with pytest.raises(UsageError, match=r"^data\.image=label: .*holds int64; allowed are encoded images"):
        read(tmp_path, image="label")
    with pytest.raises(UsageError, match=r"^data\.label=image: .*allowed are whole numbers"):
        read(tmp_path, label="image")
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"image,label\n"):
        file.write_bytes(content)
        with pytest.raises(UsageError, match=r"^data\.root=.*train\.parquet: is not a whole Parquet file"):
            read(tmp_path)
    write(file, [], [])
    with pytest.raises(UsageError, match=r"^data\.root=.*train\.parquet has no rows"):
        read(tmp_path)


def test_damage_behind_an_intact_footer_is_named(tmp_path):
    file = write(tmp_path / "train.parquet", list(pixels(50, 20, 20)), [0] * 50)
    content = bytearray(file.read_bytes())
    content[4:200] = bytes(196)
    file.write_bytes(content)
    with pytest.raises(UsageError, match=r"train\.parquet: is not a whole Parquet file"):
        load(tmp_path)


@pytest.mark.parametrize(
    "names",
    [
        ["train.parquet"],
        ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"],
        ["data/train-00000-of-00001.parquet"],
        ["train/0000.parquet", "train/0001.parquet"],
    ],
)
def test_the_usual_names_of_a_split_are_found(tmp_path, names):
    for name in [*reversed(names), "test.parquet", "training-notes-00000-of-00001.parquet"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert find_split(tmp_path, "train") == [tmp_path / name for name in names]


def test_missing_shards_are_counted(tmp_path):
    (tmp_path / "train-00001-of-00003.parquet").touch()
    with pytest.raises(UsageError, match=r"the split 'train' has 1 of 3 files"):
        find_split(tmp_path, "train")


def test_the_fast_check_imports_no_torch_and_no_datasets(tmp_path):
    write(tmp_path / "train.parquet", list(pixels(2, 4, 4)), [0, 1])
    write(tmp_path / "test.parquet", list(pixels(2, 4, 4)), [0, 1])
    program = (
        "import sys; from fedmuon.data.parquet import check_parquet; "
        "import fedmuon.data.partition, fedmuon.data.cohort, fedmuon.data.batches; "
        "check_parquet(sys.argv[1], 'image', 'label'); "
        "print(sorted({'torch', 'datasets', 'lightning'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
