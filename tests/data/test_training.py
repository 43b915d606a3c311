"""Augmented data in whole runs, and the progress bar of decoding."""

import json

import numpy as np
import pytest

import fedmuon
from fedmuon.data import image_data, images
from tests.data.pictures import pixels, write_parquet


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cifar100")
    for split, count in (("train", 60), ("test", 20)):
        labels = np.arange(count) % 5
        write_parquet(folder / f"{split}.parquet", pixels(count, 32, 32, 3), labels, None, ("img", "fine_label"))
    return folder


def rows(root, *overrides):
    run = fedmuon.run(
        [
            "data=cifar100", f"data.root={root}", "model=lenet5", "algorithm=fedavg", "federation.rounds=2",
            "federation.clients=4", "federation.cohort=2", "partition=iid", "local.steps=2", "local.batch_size=8",
            "logger=none", *overrides,
        ]
    )  # fmt: skip
    assert run.summary["status"] == "finished"
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]


def test_an_augmented_run_is_a_function_of_its_seed(root, tmp_path, monkeypatch):
    """The same rows twice; and with chunks of one client, which others drew numbers before, the same again."""
    monkeypatch.chdir(tmp_path)
    first = rows(root)
    assert len(first) == 2 and rows(root) == first and rows(root, "engine.chunk=1") == first
    plain = rows(root, "data.augment=null")
    assert plain[0]["train/loss"] != first[0]["train/loss"]


def test_evaluation_sees_no_augmentation(root, tmp_path, monkeypatch):
    """With a rate of 0 the model stays the same, so its figures tell what it is evaluated on."""
    monkeypatch.chdir(tmp_path)
    augmented, plain = rows(root, "local.lr=0"), rows(root, "local.lr=0", "data.augment=null")
    for name in ("val/loss", "val/accuracy", "test/loss", "test/accuracy"):
        assert augmented[0][name] == augmented[1][name] == plain[0][name]
    assert augmented[0]["train/loss"] != plain[0]["train/loss"]


def test_decoding_shows_its_progress_on_a_terminal_only_and_only_when_it_takes_long(tmp_path, monkeypatch, capsys):
    write_parquet(tmp_path / "train.parquet", pixels(4, 3, 3), [0, 1, 0, 1])
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)
    cases = (("0", -1.0, False), ("1", 60.0, False), ("1", -1.0, True))
    for size, (terminal, patience, shown) in enumerate(cases, start=1):
        monkeypatch.setenv("TTY_COMPATIBLE", terminal)
        monkeypatch.setattr(images, "_PATIENCE", patience)
        image_data(str(tmp_path), test_split=None, size=size)
        captured = capsys.readouterr()
        assert ("decoding train images" in captured.err) == shown and not captured.out
