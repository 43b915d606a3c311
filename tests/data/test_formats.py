"""Class folders and .npz, and what the three local formats have in common."""

import numpy as np
import pytest

from fedmuon.data import image_data
from fedmuon.data.parquet import listed
from fedmuon.data.sources import Source
from fedmuon.errors import UsageError
from tests.data.pictures import pixels, write_folder, write_npz, write_parquet

TRAIN, TEST = pixels(6, 5, 4, 3), pixels(2, 5, 4, 3, seed=1)
LABELS, TEST_LABELS = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 1])


def parquet(root, test=TEST, labels=TEST_LABELS):
    write_parquet(root / "train.parquet", TRAIN, LABELS)
    write_parquet(root / "test.parquet", test, labels)
    return root


def folders(root, test=TEST, labels=TEST_LABELS):
    write_folder(root, "train", TRAIN, LABELS)
    write_folder(root, "val", test, labels, names=("cat", "dog", "elk"))
    return root


def npz(root, test=TEST, labels=TEST_LABELS):
    write_npz(root / "data.npz", (TRAIN, LABELS), (test, labels))
    return root


def npz_file(root):
    return write_npz(root / "pets.npz", (TRAIN, LABELS[:, None]), (TEST, TEST_LABELS.astype(np.uint8)[:, None]))


@pytest.mark.parametrize("write", [parquet, folders, npz, npz_file])
def test_every_format_gives_the_same_data_set(tmp_path, write):
    root = write(tmp_path)
    Source(str(root)).check()
    for _ in range(2):  # decoded, then from the cache
        data = image_data(str(root))
        assert np.array_equal(data.train.columns[0], TRAIN.transpose(0, 3, 1, 2)) and data.labels.tolist() == [*LABELS]
        assert np.array_equal(data.test.columns[0], TEST.transpose(0, 3, 1, 2))
        assert data.test.columns[1].tolist() == [*TEST_LABELS] and data.input_shape == (3, 5, 4)
        assert data.classes == (("0", "1") if write in (npz, npz_file) else ("cat", "dog"))
        measured = TRAIN.reshape(-1, 3) / 255
        assert data.train.transform.mean == pytest.approx(measured.mean(0)), "measured on the training images"
        assert data.test.transform.std == pytest.approx(measured.std(0))


@pytest.mark.parametrize("write", [parquet, folders, npz])
def test_what_is_hidden_is_no_data(tmp_path, write):
    """Copies of Jupyter, and what macOS puts beside every file: names that end alike, and no images."""
    root = write(tmp_path / "data")
    for file in [file for file in root.rglob("*") if file.is_file()]:
        file.with_name(f"._{file.name}").write_bytes(b"of macOS")
        apart = root / "__MACOSX" / file.relative_to(root).with_name(f"._{file.name}")
        for copy in (apart, file.parent / "__MACOSX" / file.name, file.parent / ".ipynb_checkpoints" / file.name):
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
    Source(str(root)).check()
    data = image_data(str(root))
    assert np.array_equal(data.train.columns[0], TRAIN.transpose(0, 3, 1, 2)) and len(data.test) == len(TEST)


def test_shards_that_macos_copied_are_no_shards(tmp_path):
    for where in ("train", ".cache"):
        for name in ("0.parquet", "._0.parquet", "train-0.parquet"):
            (tmp_path / where).mkdir(exist_ok=True)
            (tmp_path / where / name).touch()
    (tmp_path / "train" / "train-0.parquet").unlink()
    assert listed(tmp_path, "train") == [tmp_path / "train" / "0.parquet"]


def test_links_in_a_folder_are_followed_once(tmp_path):
    folders(tmp_path / "linked")
    cats = tmp_path / "linked" / "train" / "cat"
    (cats / "loop").symlink_to(cats)
    (cats / "below").mkdir()
    (cats / "000.png").rename(tmp_path / "a.png")
    (cats / "below" / "000.png").symlink_to(tmp_path / "a.png")
    (cats / "twice").symlink_to(cats / "below")
    data = image_data(str(tmp_path / "linked"))
    assert data.labels.tolist() == [*LABELS]
    assert len({image.numpy().tobytes() for image in data.train.columns[0]}) == len(TRAIN)


@pytest.mark.parametrize("write", [parquet, folders, npz])
def test_test_images_must_have_the_size_of_the_training_images(tmp_path, write):
    with pytest.raises(UsageError, match=r"4 x 6 pixels, the training images are 4 x 5.*data\.size=5"):
        image_data(str(write(tmp_path, test=pixels(2, 6, 4, 3))))


@pytest.mark.parametrize("write", [parquet, folders, npz])
def test_test_labels_beyond_the_training_classes_are_refused(tmp_path, write):
    write(tmp_path, labels=np.array([0, 2]))
    expected = "'elk' is none of the 2" if write is folders else "row 1 has the label 2; allowed is 0 to 1.*1 of 2 rows"
    with pytest.raises(UsageError, match=expected):
        image_data(str(tmp_path))


def test_folders_grey_test_images_become_what_the_training_images_are(tmp_path):
    write_folder(tmp_path, "train", TRAIN, LABELS)
    write_folder(tmp_path, "test", TEST[..., 0], TEST_LABELS)
    data = image_data(str(tmp_path))
    assert np.array_equal(data.test.columns[0], np.repeat(TEST[..., :1].transpose(0, 3, 1, 2), 3, axis=1))


def broken_folder(root, how):
    folders(root)
    first = root / "train" / "cat" / "000.png"
    if how == "no test":
        (root / "val").rename(root / "later")
    elif how == "empty class":
        (root / "train" / "elk").mkdir()
    elif how == "empty split":
        for file in (root / "val").rglob("*.png"):
            file.unlink()
    elif how == "no classes":
        (root / "train").rename(root / "images")
        (root / "train").mkdir()
    elif how == "truncated":
        first.write_bytes(first.read_bytes()[:60])


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("no test", r"has no folder 'test'.*expected train/<class>/\*\.png and test/<class>.*data\.test_split=null"),
        ("empty class", r"train/elk: the class has no images; allowed endings are .*\.png"),
        ("empty split", r"val: the split has no images"),
        ("no classes", r"train: holds no class folders"),
        ("truncated", r"train/cat/000\.png: the image cannot be decoded"),
    ],
)
def test_broken_folders(tmp_path, how, message):
    broken_folder(tmp_path, how)
    for read in (Source(str(tmp_path)).check, lambda: image_data(str(tmp_path))):
        with pytest.raises(UsageError, match=rf"^data\.root=.*{message}") as caught:
            read()
        assert "\n" not in str(caught.value)


def test_a_later_broken_image_of_a_folder_is_named_by_its_file(tmp_path):
    folders(tmp_path)
    file = tmp_path / "train" / "dog" / "004.png"
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(UsageError, match=r"^data\.root=.*train/dog/004\.png: the image cannot be decoded"):
        image_data(str(tmp_path))
    file.write_bytes((tmp_path / "val" / "dog" / "001.png").read_bytes())
    write_folder(tmp_path, "train", [*TRAIN[:5], pixels(1, 3, 3, 3)[0]], LABELS)
    with pytest.raises(UsageError, match=r"^data\.root=.*dog/005\.png: the image is 3 x 3 pixels, the first is 4 x 5"):
        image_data(str(tmp_path))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x_train": TRAIN / 255}, r"x_train is float64 \[6, 5, 4, 3\]; allowed are uint8 images"),
        ({"x_train": TRAIN.transpose(0, 3, 1, 2)}, r"x_train is uint8 \[6, 3, 5, 4\]; .* channels\] with 1 or 3"),
        ({"y_train": LABELS[:5]}, r"y_train is int64 \[5\]; allowed are 6 whole numbers"),
        ({"y_train": LABELS / 2}, r"y_train is float64"),
        ({"x_test": TEST[:0], "y_test": TEST_LABELS[:0]}, r"x_test \[0, 5, 4, 3\] has no pixels"),
    ],
)
def test_arrays_that_are_no_images_and_labels(tmp_path, changed, message):
    file = write_npz(tmp_path / "a.npz", (TRAIN, LABELS), (TEST, TEST_LABELS), **changed)
    with pytest.raises(UsageError, match=rf"^data\.root=.*a\.npz: {message}"):
        Source(str(file)).check()


def test_broken_archives(tmp_path):
    file = write_npz(tmp_path / "a.npz", (TRAIN, LABELS), (TEST, TEST_LABELS))
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match=r"a\.npz: is not a whole \.npz"):
        Source(str(file)).check()
    damaged = bytearray(whole)
    damaged[200:260] = bytes(60)  # inside x_train: only its checksum tells
    file.write_bytes(damaged)
    with pytest.raises(UsageError, match=r"a\.npz: is not a whole \.npz"):
        image_data(str(file))
    np.savez(file, x_train=TRAIN, y_train=LABELS)
    with pytest.raises(UsageError, match=r"has no array 'x_test'; .* holds x_train, y_train; data\.test_split=null"):
        Source(str(file)).check()
    assert image_data(str(file), test_split=None).test is None
    write_npz(file, (TRAIN, LABELS - 1), (TEST, TEST_LABELS))
    with pytest.raises(UsageError, match=r"a\.npz: y_train: row 0 has the label -1"):
        image_data(str(file))


@pytest.mark.parametrize("write", [parquet, folders, npz])
def test_a_folder_that_is_no_utf8_is_refused(tmp_path, write):
    root = write(tmp_path / "pets").rename(tmp_path / "caf\udce9")  # as a byte is decoded that is none
    with pytest.raises(UsageError, match=r"^data\.root='.*caf\\udce9': is no UTF-8.*; name another folder$"):
        Source(str(root)).check()


def test_what_is_no_data_set_at_all(tmp_path):
    (tmp_path / "notes.txt").write_text("later")
    with pytest.raises(UsageError, match=r"holds neither train\*\.parquet .* nor one \.npz; it holds notes\.txt"):
        Source(str(tmp_path)).check()
    with pytest.raises(UsageError, match=r"notes\.txt: is a file, but no \.npz"):
        Source(str(tmp_path / "notes.txt")).check()
    with pytest.raises(UsageError, match=r"^data\.test_split=train: is the training split too"):
        Source(str(tmp_path), test_split="train").check()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": [0.5]}, r"data\.mean=\[0\.5\]: must be 3 numbers"),
        ({"std": [1.0, 0.0, 1.0]}, r"data\.std=.* above 0"),
        ({"augment": {"cutout": 5}}, r"data\.augment\.cutout=5: must be at most 4"),
        ({"sise": 3}, r"data\.sise: there is no such key; allowed: root"),
    ],
)
def test_parameters_that_do_not_fit_the_images(tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        image_data(str(npz(tmp_path)), **options)
