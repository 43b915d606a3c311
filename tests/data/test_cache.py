"""Decoded data sets are kept, noticed when they no longer fit, and never in the way."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from fedmuon.data import cache, image_data, images
from fedmuon.data.sources import Source
from tests.data.pictures import pixels, write_folder, write_npz, write_parquet

TRAIN, LABELS = pixels(4, 5, 4), np.array([0, 1, 0, 1])


@pytest.fixture
def root(tmp_path):
    write_parquet(tmp_path / "train.parquet", TRAIN, LABELS)
    write_parquet(tmp_path / "test.parquet", TRAIN[:2], LABELS[:2])
    return tmp_path


@pytest.fixture
def decoded(monkeypatch):
    """The titles of what was decoded."""
    titles = []
    monkeypatch.setattr("fedmuon.data.dataset.decode", lambda *a: titles.append(a[-1]) or images.decode(*a))
    return titles


def test_the_second_time_nothing_is_decoded(root, cache, decoded):
    first, second = image_data(str(root)), image_data(str(root))
    assert decoded == ["train images", "test images"] and len(list(cache.iterdir())) == 1
    for one, other in ((first.train, second.train), (first.test, second.test)):
        assert all(torch.equal(a, b) for a, b in zip(one.columns, other.columns, strict=True))
    assert first.train.transform == second.train.transform and first.classes == second.classes == ("cat", "dog")


def test_what_changes_the_images_makes_another_entry(root, decoded):
    for options in ({}, {"size": 3}, {"channels": 3}, {"test_split": None}):
        image_data(str(root), **options)
    assert len(decoded) == 7
    image_data(str(root), mean=[0.5], augment={"flip": True})
    assert len(decoded) == 7


def test_changed_files_are_noticed(tmp_path, decoded):
    """A new time; and other contents of the same size under the old time, which the archive's directory tells."""
    file = write_npz(tmp_path / "a.npz", (TRAIN, LABELS), (TRAIN, LABELS))
    image_data(str(file))
    os.utime(file, ns=(1, 1))
    image_data(str(file))
    write_npz(file, (255 - TRAIN, LABELS), (TRAIN, LABELS))
    os.utime(file, ns=(1, 1))
    assert np.array_equal(image_data(str(file)).train.columns[0][:, 0], 255 - TRAIN) and len(decoded) == 6
    folder = tmp_path / "folder"
    write_folder(folder, "train", TRAIN, LABELS)
    assert len(image_data(str(folder), test_split=None).train) == 4
    write_folder(folder, "train", TRAIN[:1], [1])
    assert len(image_data(str(folder), test_split=None).train) == 5


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "other"])
def test_a_damaged_entry_is_made_again(root, cache, decoded, damage):
    expected = image_data(str(root)).train.columns[0]
    (entry,) = cache.iterdir()
    content = bytearray(entry.read_bytes())
    content[-3] ^= 1
    written = {"truncated": bytes(content)[:-9], "flipped": bytes(content), "empty": b"", "other": b"{}" * 99}[damage]
    entry.unlink()
    entry.write_bytes(written)
    assert torch.equal(image_data(str(root)).train.columns[0], expected) and len(decoded) == 4
    image_data(str(root))
    assert len(decoded) == 4, "the new entry is whole"


def test_a_cache_that_cannot_be_written_costs_only_time(root, tmp_path, monkeypatch, decoded):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDMUON_CACHE", str(tmp_path / "file" / "below"))
    for _ in range(2):
        assert len(image_data(str(root)).train) == 4
    assert len(decoded) == 4


def test_a_failed_write_leaves_nothing(root, cache, monkeypatch):
    def full(tensors, part, metadata):
        with open(part, "wb") as file:
            file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedmuon.data.cache.save_file", full)
    assert len(image_data(str(root)).train) == 4 and not list(cache.iterdir())


def test_above_the_limit_what_was_not_used_for_longest_goes(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMUON_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "LIMIT", 2500)
    now = time.time()
    for age, name in ((3, "a"), (2, "b")):
        cache.save(cache.entry(name), {"x": torch.zeros(900, dtype=torch.uint8)}, {})
        os.utime(cache.entry(name), (now - age, now - age))
    old = tmp_path / ".x.safetensors.123"
    old.touch()
    os.utime(old, (now - 2 * 86_400,) * 2)
    assert cache.load(cache.entry("a"))[0]["x"].shape == (900,)  # used: now the younger one
    cache.save(cache.entry("c"), {"x": torch.zeros(900, dtype=torch.uint8)}, {"n": 1})
    assert {f.name for f in tmp_path.iterdir()} == {cache.entry(name).name for name in "ac"}
    assert cache.load(cache.entry("b")) is None and cache.load(cache.entry("c"))[1] == {"n": 1}
    cache.save(cache.entry("d"), {"x": torch.zeros(2501, dtype=torch.uint8)}, {})
    assert not cache.entry("d").exists(), "larger than the whole cache"


def test_the_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDMUON_CACHE", str(tmp_path / "mine"))
    assert cache.folder() == tmp_path / "mine"
    monkeypatch.setenv("FEDMUON_CACHE", "~no-such-user/x")  # as a shell leaves it
    assert cache.folder() == Path(os.devnull, "~no-such-user/x")
    monkeypatch.delenv("FEDMUON_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "fedmuon"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.folder() == tmp_path / "home" / ".cache" / "fedmuon"


def test_the_same_folder_has_one_entry_wherever_one_stands(root, monkeypatch):
    monkeypatch.chdir(root.parent)
    assert Source(root.name).identity() == Source(str(root)).identity()


def test_a_hit_needs_neither_datasets_nor_pillow_s_decoders():
    program = (
        "import sys; from fedmuon.data import image_data; d = image_data(); "
        "heavy = {'datasets', 'huggingface_hub', 'PIL.PngImagePlugin'}; "
        "print(len(d.train), len(d.test), sorted(heavy & set(sys.modules)))"
    )
    for modules in ("['PIL.PngImagePlugin']", "[]"):
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert result.stdout.strip() == f"10000 2000 {modules}"
