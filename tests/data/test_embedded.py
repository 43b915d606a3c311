"""The embedded Fashion-MNIST subset: balanced, small, licensed, and reproducible from the full set."""

import importlib.util
import os
from pathlib import Path

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest

from fedmuon.data import image_data

ROOT = Path(__file__).resolve().parents[2]
MINI = ROOT / "fedmuon" / "data" / "embedded" / "fashion_mnist_mini"
SHARED = Path(os.environ.get("FEDMUON_SHARED", ROOT.parent / "shared"))
SOURCE = SHARED / "data" / "fashion_mnist"
NAMES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


@pytest.mark.parametrize(("split", "per_class"), [("train", 1000), ("test", 200)])
def test_balanced_shuffled_and_decodable(split, per_class):
    data = image_data()
    images, labels = (data.train if split == "train" else data.test).columns
    assert data.classes == NAMES
    assert images.shape == (10 * per_class, 1, 28, 28)
    assert np.bincount(labels).tolist() == [per_class] * 10
    # A shuffled order repeats the class before with probability 1/10; class order would nearly always.
    assert 0.05 < (labels[1:] == labels[:-1]).double().mean() < 0.15
    assert 0.2 < images.double().mean() / 255 < 0.4 and images.max() == 255


def test_no_image_is_in_it_twice_under_two_rows():
    rows = pq.read_table(MINI / "train.parquet")["image"].combine_chunks().field("bytes").to_pylist()
    assert len(set(rows)) >= len(rows) - 10  # the original has a few duplicates


def test_licence_and_size():
    licence = (MINI / "LICENSE").read_text()
    assert "MIT License" in licence and "Copyright (c) 2017 Zalando SE, https://tech.zalando.com" in licence
    assert sum(file.stat().st_size for file in MINI.iterdir()) <= 6_000_000


def test_datasets_reads_it_with_its_class_names(tmp_path):
    files = {split: str(MINI / f"{split}.parquet") for split in ("train", "test")}
    loaded = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path))
    assert {split: len(rows) for split, rows in loaded.items()} == {"train": 10_000, "test": 2_000}
    features = loaded["train"].features
    assert isinstance(features["image"], datasets.Image) and tuple(features["label"].names) == NAMES
    assert loaded["test"][0]["image"].size == (28, 28)


@pytest.mark.skipif(not SOURCE.is_dir(), reason="the full Fashion-MNIST is not here (FEDMUON_SHARED)")
def test_the_script_makes_the_same_files_again(tmp_path):
    spec = importlib.util.spec_from_file_location("mini", ROOT / "scripts" / "make_fashion_mnist_mini.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for name in ("one", "two"):
        script.make(SOURCE, tmp_path / name)
    for file in ("train.parquet", "test.parquet", "LICENSE"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    # Against the committed files by content: another version of pyarrow may write other bytes.
    for file in ("train.parquet", "test.parquet"):
        assert pq.read_table(tmp_path / "one" / file).equals(pq.read_table(MINI / file))
