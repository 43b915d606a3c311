"""Parquet image sets: what is read, and one line for everything that cannot be."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from fedmuon.data import image_data
from fedmuon.data.parquet import check_parquet, find_split
from fedmuon.data.sources import Source
from fedmuon.errors import UsageError
from tests.data.pictures import FEATURES, pixels, png, write_parquet


def train_of(root, **options):
    """Images, labels and class names of a folder that has a training split only."""
    data = image_data(str(root), test_split=None, **options)
    assert data.test is None
    return *data.train.columns, data.classes


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 3)])
def test_pixels_labels_and_names_come_out_as_they_went_in(tmp_path, shape):
    arrays = pixels(5, *shape)
    write_parquet(tmp_path / "train-00000-of-00002.parquet", arrays[:3], [0, 1, 1])
    write_parquet(tmp_path / "train-00001-of-00002.parquet", arrays[3:], [0, 1])
    images, labels, names = train_of(tmp_path)
    expected = arrays[:, None] if len(shape) == 2 else arrays.transpose(0, 3, 1, 2)
    assert images.dtype == torch.uint8 and images.is_contiguous() and np.array_equal(images, expected)
    assert labels.tolist() == [0, 1, 1, 0, 1] and labels.dtype == torch.int64 and names == ("cat", "dog")


def test_channels_convert_and_names_are_numbers_without_features(tmp_path):
    grey, colour = pixels(2, 4, 4), pixels(2, 4, 4, 3)
    write_parquet(tmp_path / "grey" / "train.parquet", grey, [0, 2], features=None)
    images, _, names = train_of(tmp_path / "grey", channels=3)
    assert np.array_equal(images, np.repeat(grey[:, None], 3, axis=1)) and names == ("0", "1", "2")
    write_parquet(tmp_path / "colour" / "train.parquet", colour, [0, 1])
    images, _, _ = train_of(tmp_path / "colour", channels=1)
    assert np.abs(images[:, 0].numpy() - colour @ np.array([0.299, 0.587, 0.114])).max() <= 1
    with pytest.raises(UsageError, match=r"^data\.channels=2: must be 1"):
        train_of(tmp_path / "colour", channels=2)


def test_images_of_several_sizes_are_scaled_and_cut_to_data_size(tmp_path):
    wide = np.zeros((8, 16), np.uint8)
    wide[:, 4:12] = 200  # the middle square, which the cut keeps
    write_parquet(tmp_path / "train.parquet", [wide, np.full((6, 6), 200, np.uint8)], [0, 1])
    images, _, _ = train_of(tmp_path, size=4)
    assert images.shape == (2, 1, 4, 4) and (images == 200).all(dim=(1, 2, 3))[1] and images[0, 0, :, 1:3].min() > 190


def test_class_names_may_stand_in_the_column(tmp_path):
    write_parquet(tmp_path / "train.parquet", pixels(3, 4, 4), ["dog", "ant", "dog"], features=None)
    write_parquet(tmp_path / "test.parquet", pixels(1, 4, 4), ["dog"], features=None)
    data = image_data(str(tmp_path))
    assert data.classes == ("ant", "dog") and data.labels.tolist() == [1, 0, 1]
    assert data.test.columns[1].tolist() == [1]
    write_parquet(tmp_path / "test.parquet", pixels(2, 4, 4), ["dog", "bee"], features=None)
    with pytest.raises(UsageError, match=r"^data\.label=label: 'bee' is none of the 2 classes"):
        image_data(str(tmp_path))


def test_more_images_than_a_thread_takes_at_once_keep_their_order(tmp_path):
    arrays = pixels(1203, 2, 2)
    write_parquet(tmp_path / "train.parquet", arrays, [0] * 1203)
    assert np.array_equal(train_of(tmp_path)[0][:, 0], arrays)


def test_binary_columns_are_images_too(tmp_path):
    arrays = pixels(2, 3, 3)
    pq.write_table(pa.table({"image": [png(array) for array in arrays], "label": [0, 1]}), tmp_path / "train.parquet")
    assert np.array_equal(train_of(tmp_path)[0][:, 0], arrays)


GOOD = pixels(1, 4, 4)[0]


@pytest.mark.parametrize(
    ("images", "labels", "features", "message"),
    [
        ([], [], FEATURES, r"data\.root=.*train\.parquet has no rows"),
        ([GOOD, pixels(1, 5, 4)[0]], [0, 1], FEATURES, r"data\.image=image: row 1 is 4 x 5 .* first is 4 x 4"),
        ([GOOD, None], [0, 1], FEATURES, r"data\.image=image: row 1 has no image"),
        ([None, GOOD], [0, 1], FEATURES, r"data\.image=image: row 0 has no image"),
        ([b"no image", GOOD], [0, 1], FEATURES, r"data\.image=image: row 0 cannot be decoded"),
        ([GOOD, b"no"], [0, 1], FEATURES, r"data\.image=image: row 1 cannot be decoded"),
        ([png(pixels(1, 64, 64)[0])[:900]], [0], FEATURES, r"data\.image=image: row 0 cannot be decoded .*truncated"),
        ([np.zeros((4, 4), np.uint16)], [0], FEATURES, r"data\.image=image: row 0 has the pixel type I"),
        ([GOOD, pixels(1, 4, 4, 3)[0]], [0, 1], FEATURES, r"row 1 is in colour, .*set data\.channels"),
        ([GOOD] * 3, [0, 2, 5], FEATURES, r"data\.label=label: row 1 has the label 2; allowed is 0 to 1.*; 2 of 3"),
        ([GOOD] * 2, [0, -1], FEATURES, r"data\.label=label: row 1 has the label -1; allowed is 0 to 1"),
        ([GOOD] * 2, [-1, 3], None, r"data\.label=label: row 0 has the label -1; allowed is 0 to 3"),
        ([GOOD] * 2, [0, 10**12], None, r"data\.label=label has the label 1000000000000; number the classes"),
        ([GOOD] * 2, [0, None], FEATURES, r"data\.label=label: 1 of 2 rows have no label"),
    ],
)  # fmt: skip
def test_contents_that_cannot_be_used_are_named_and_leave_nothing_in_the_cache(
    tmp_path, cache, images, labels, features, message
):
    write_parquet(tmp_path / "train.parquet", images, labels, features)
    with pytest.raises(UsageError, match=message) as caught:
        train_of(tmp_path)
    assert "\n" not in str(caught.value) and not list(cache.iterdir())


def load(root, image="image", label="label"):
    Source(str(root), image=image, label=label, test_split=None).read()


def check(root, image="image", label="label"):
    Source(str(root), image=image, label=label, test_split=None).check()


@pytest.mark.parametrize("read", [load, check])
def test_the_fast_check_and_the_loader_refuse_the_same(tmp_path, read):
    with pytest.raises(UsageError, match=r"^data\.root=.*absent: there is no such folder"):
        read(tmp_path / "absent")
    with pytest.raises(UsageError, match=r"^data\.root=.*holds neither train\*\.parquet nor .* holds nothing"):
        read(tmp_path)
    file = write_parquet(tmp_path / "train.parquet", pixels(4, 9, 9), [0, 1, 0, 1])
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
    write_parquet(file, [], [])
    with pytest.raises(UsageError, match=r"^data\.root=.*train\.parquet has no rows"):
        read(tmp_path)


def test_a_missing_test_split_is_named(tmp_path):
    write_parquet(tmp_path / "train.parquet", pixels(2, 4, 4), [0, 1])
    with pytest.raises(UsageError, match=r"no Parquet file of the split 'test'; .*holds train\.parquet"):
        Source(str(tmp_path)).check()


def test_damage_behind_an_intact_footer_is_named(tmp_path):
    file = write_parquet(tmp_path / "train.parquet", pixels(50, 20, 20), [0] * 50)
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
        ["cifar100/train-00000-of-00001.parquet"],
        ["train/0000.parquet", "train/0001.parquet"],
    ],
)
def test_the_usual_names_of_a_split_are_found(tmp_path, names):
    for name in [*reversed(names), "test.parquet", "training-notes-00000-of-00001.parquet"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert find_split(tmp_path, "train") == [tmp_path / name for name in names]


def test_missing_shards_and_several_configurations_are_refused(tmp_path):
    (tmp_path / "train-00001-of-00003.parquet").touch()
    with pytest.raises(UsageError, match=r"the split 'train' has 1 of 3 files"):
        find_split(tmp_path, "train")
    for name in ("plain", "cropped"):
        (tmp_path / "hub" / name).mkdir(parents=True)
        (tmp_path / "hub" / name / "train-00000-of-00001.parquet").touch()
    with pytest.raises(UsageError, match=r"is in several folders, cropped, plain; name one"):
        find_split(tmp_path / "hub", "train")


def test_the_fast_check_imports_no_torch_and_no_datasets(tmp_path):
    write_parquet(tmp_path / "train.parquet", pixels(2, 4, 4), [0, 1])
    write_parquet(tmp_path / "test.parquet", pixels(2, 4, 4), [0, 1])
    check_parquet(tmp_path, "image", "label")
    program = (
        "import sys; from fedmuon.data.sources import Source; import fedmuon.data.partition, fedmuon.data.cohort; "
        "Source(sys.argv[1]).check(); Source(path='owner/name').check(); "
        "print(sorted({'torch', 'datasets', 'lightning', 'huggingface_hub'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
