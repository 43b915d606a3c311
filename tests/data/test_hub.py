"""Data sets of the hub through `datasets`: from its own earlier download, and one line without one."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import datasets
import huggingface_hub
import numpy as np
import pytest
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

from fedmuon.data import image_data
from fedmuon.data.sources import Source
from fedmuon.errors import UsageError
from tests.data.pictures import pixels, write_parquet

TRAIN, LABELS = pixels(4, 5, 4, 3), [0, 1, 0, 1]


@pytest.fixture
def hub(monkeypatch):
    """What the hub answers when it is asked for a data set: a commit, or an exception."""
    answer = SimpleNamespace(result="0" * 40)

    def dataset_info(self, path, revision=None, timeout=None):
        if isinstance(answer.result, Exception):
            raise answer.result
        return SimpleNamespace(sha=answer.result)

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    return answer


@pytest.fixture
def downloaded(tmp_path, monkeypatch):
    """`owner/pets` as `datasets` leaves it behind: prepared once, in its cache folder."""
    files = {split: str(write_parquet(tmp_path / f"{split}.parquet", TRAIN, LABELS)) for split in ("train", "test")}
    made = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "made"))
    prepared = os.path.dirname(made["train"].cache_files[0]["filename"])
    home = tmp_path / "datasets" / "owner___pets" / "default" / "0.0.0" / "abc"
    home.parent.mkdir(parents=True)
    os.rename(prepared, home)
    for split in files:
        (home / f"parquet-{split}.arrow").rename(home / f"pets-{split}.arrow")
    info = json.loads((home / "dataset_info.json").read_text())
    info |= {"dataset_name": "pets", "config_name": "default"}
    for split in info["splits"].values():
        split["dataset_name"] = "pets"
    (home / "dataset_info.json").write_text(json.dumps(info))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    return made


def test_without_a_network_an_earlier_download_is_used_and_then_the_cache(hub, downloaded, monkeypatch):
    hub.result = OSError("Name or service not known")
    before = datasets.config.HF_HUB_OFFLINE
    data = image_data(path="owner/pets")
    assert np.array_equal(data.train.columns[0], TRAIN.transpose(0, 3, 1, 2)) and data.classes == ("cat", "dog")
    assert data.labels.tolist() == LABELS and len(data.test) == 4 and before == datasets.config.HF_HUB_OFFLINE
    monkeypatch.setattr(datasets, "load_dataset", None)
    assert len(image_data(path="owner/pets").train) == 4


def test_with_a_network_the_commit_that_the_hub_names_is_loaded(hub, downloaded, monkeypatch):
    calls = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: calls.append((a, k)) or downloaded)
    image_data(path="owner/pets", config="small", test_split=None)
    assert calls == [(("owner/pets", "small"), {"revision": "0" * 40})]
    cases = {
        r"^data\.test_split=tets: .*owner/pets has no such split \(did you mean 'test'\?\); it has train, test": {
            "test_split": "tets"
        },
        r"^data\.image=img: the split 'train' of owner/pets has no such column.*columns are image, label": {
            "image": "img"
        },
        r"^data\.label=image: the column of the split 'train' of owner/pets holds struct": {"label": "image"},
    }
    for message, options in cases.items():
        with pytest.raises(UsageError, match=message):
            image_data(path="owner/pets", **options)
    empty = datasets.DatasetDict(train=downloaded["train"], test=downloaded["test"].select([]))
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: empty)
    with pytest.raises(UsageError, match=r"^data\.test_split=test: the split of data\.path=owner/pets has no rows"):
        image_data(path="owner/pets")


def test_rows_that_datasets_has_selected_are_respected(hub, downloaded, monkeypatch):
    chosen = datasets.DatasetDict(train=downloaded["train"].select([3, 1]))
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: chosen)
    data = image_data(path="owner/pets", test_split=None)
    assert np.array_equal(data.train.columns[0], TRAIN[[3, 1]].transpose(0, 3, 1, 2)) and data.labels.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (RepositoryNotFoundError, r"^data\.path=owner/pets: the hub has no such data set, or it needs a login"),
        (RevisionNotFoundError, r"^data\.revision=v9: data\.path=owner/pets has no such revision"),
    ],
)
def test_what_the_hub_does_not_have(hub, answer, message):
    hub.result = answer.__new__(answer)
    with pytest.raises(UsageError, match=message):
        image_data(path="owner/pets", revision="v9")


def test_a_configuration_that_does_not_exist(hub, monkeypatch):
    def load(*args, **options):
        raise ValueError("BuilderConfig 'x' not found.\nAvailable: ['default']")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(
        UsageError, match=r"^data\.path=owner/pets, data\.config=x: .*not found\. Available: \['default'\]"
    ):
        image_data(path="owner/pets", config="x")


def test_paths_that_are_none(tmp_path):
    with pytest.raises(UsageError, match=r"^data\.path: names no data set; .*data\.root=FOLDER"):
        Source(path="").check()
    with pytest.raises(UsageError, match=rf"^data\.path={tmp_path}: is a local folder; use data\.root={tmp_path}"):
        Source(path=str(tmp_path)).check()


@pytest.mark.parametrize("environment", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}])
def test_no_network_and_no_data_is_one_line_within_seconds(tmp_path, environment):
    program = """
import time, datasets, huggingface_hub
from fedmuon.data import image_data
from fedmuon.errors import UsageError
started = time.monotonic()
try:
    image_data(path="uoft-cs/cifar100", image="img", label="fine_label")
except UsageError as error:
    print(f"{time.monotonic() - started:.1f} {error}")
"""
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, _, message = result.stdout.strip().partition(" ")
    assert float(seconds) < 15, "datasets alone would try again for half a minute"
    assert message.startswith("data.path=uoft-cs/cifar100: the Hugging Face hub cannot be reached (")
    assert "hf download --repo-type dataset uoft-cs/cifar100 --local-dir FOLDER" in message and "\n" not in message
    assert "Retrying" not in result.stderr
