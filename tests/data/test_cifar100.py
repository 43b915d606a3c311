"""CIFAR-100 and Fashion-MNIST as on the hub, where they lie in shared/data (FEDMUON_SHARED)."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

import fedmuon
from fedmuon import rundir
from fedmuon.data import DataSet, image_data

SHARED = Path(os.environ.get("FEDMUON_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "data"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (SHARED / "cifar100").is_dir(), reason="CIFAR-100 is not here (FEDMUON_SHARED)"),
]


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def cifar100(kept, monkeypatch) -> DataSet:
    """Decoded once for all tests here."""
    monkeypatch.setenv("FEDMUON_CACHE", str(kept))
    return image_data(str(SHARED / "cifar100"), image="img", label="fine_label", augment={"crop": 4, "flip": True})


def test_counts_classes_mean_and_deviation(cifar100):
    assert cifar100.train.columns[0].shape == (50_000, 3, 32, 32) and len(cifar100.test) == 10_000
    assert np.bincount(cifar100.labels).tolist() == [500] * 100
    assert np.bincount(cifar100.test.columns[1]).tolist() == [100] * 100
    assert cifar100.classes[:3] == ("apple", "aquarium_fish", "baby") and len(cifar100.classes) == 100
    normalize = cifar100.train.transform
    assert normalize.mean == pytest.approx((0.50707516, 0.48654887, 0.44091784), abs=1e-8)
    assert normalize.std == pytest.approx((0.26733429, 0.25643846, 0.27615047), abs=1e-8)


def test_the_second_start_is_fast(cifar100):
    started = time.process_time()
    again = image_data(str(SHARED / "cifar100"), image="img", label="fine_label")
    assert time.process_time() - started < 3
    assert again.train.augment is None and cifar100.train.augment is not None
    mean = again.train.batch(slice(0, 5000))[0].mean((0, 2, 3))
    assert mean.abs().max() < 0.05, "normalised by its own figures"


def test_coarse_labels(monkeypatch, cifar100):
    from fedmuon.data.labels import class_numbers
    from fedmuon.data.sources import Source

    splits = Source(str(SHARED / "cifar100"), image="img", label="coarse_label").read()
    (train, test), classes = class_numbers(splits)
    assert len(classes) == 20 and classes[0] == "aquatic_mammals"
    assert np.bincount(train).tolist() == [2500] * 20 and np.bincount(test).tolist() == [500] * 20
    pairs = {(int(f), int(c)) for f, c in zip(cifar100.labels, train, strict=True)}
    assert len(pairs) == 100, "every fine class lies in one coarse class"


@pytest.mark.parametrize("model", ["resnet18", "vit_tiny"])
def test_a_full_round_of_fedmuon(model, cifar100, tmp_path):
    keys = [
        "data=cifar100", f"data.root={SHARED / 'cifar100'}", f"model={model}", "algorithm=fedmuon", "logger=none",
        "federation.rounds=1", "federation.cohort=2", "local.steps=2", "local.batch_size=8", "evaluation.batch_size=50",
        "trainer.limit_val_batches=1", "trainer.accelerator=cpu", f"run_dir={tmp_path / 'run'}",
    ]  # fmt: skip
    summary, path = fedmuon.run(keys)
    assert summary["status"] == "finished"
    routes = json.loads((path / "routing.json").read_text())
    matrices = [route for route in routes if route["rule"] == "Muon"]
    assert len(matrices) == {"resnet18": 21, "vit_tiny": 28}[model]
    (row,) = rundir.read(path / "metrics.jsonl")
    assert row["train/trained"] == 2 and row["aggregation/momentum_norm"] > 0
