"""Every data set of `conf/data`: composed, checked and loaded from a small local folder with the hub's columns."""

import numpy as np
import pytest

from fedmuon.build import load_data
from fedmuon.compose import CONF, Composer
from fedmuon.data.augment import Augmentation
from fedmuon.errors import UsageError
from fedmuon.job import checked_job
from tests.data.pictures import pixels, write_npz, write_parquet

HUB = {  # the hub's name, columns, test split, and the shape of an image
    "cifar10": ("uoft-cs/cifar10", ("img", "label"), "test", (3, 32, 32)),
    "cifar100": ("uoft-cs/cifar100", ("img", "fine_label"), "test", (3, 32, 32)),
    "fashion_mnist": ("zalando-datasets/fashion_mnist", ("image", "label"), "test", (1, 28, 28)),
    "mnist": ("ylecun/mnist", ("image", "label"), "test", (1, 28, 28)),
    "tiny_imagenet": ("zh-plus/tiny-imagenet", ("image", "label"), "valid", (3, 64, 64)),
}


def composed(*overrides):
    return checked_job(Composer().compose(list(overrides))).config


@pytest.mark.parametrize("name", HUB)
def test_the_named_data_sets_from_the_hub_s_files(tmp_path, name):
    path, columns, test, (channels, *size) = HUB[name]
    images = pixels(4, *size) if channels == 1 else pixels(4, *size, channels)
    for split in ("train", test):
        write_parquet(tmp_path / "data" / f"{split}-00000-of-00001.parquet", images, [0, 1, 2, 1], None, columns)
    config = composed(f"data={name}", f"data.root={tmp_path}")
    data = load_data(config)
    assert config.data.path == path and data.input_shape == (channels, *size) and len(data.test) == 4
    assert np.array_equal(data.train.columns[0], images[:, None] if channels == 1 else images.transpose(0, 3, 1, 2))
    normalize, augment = data.train.transform, data.train.augment
    assert len(normalize.mean) == channels and all(0.1 < s < 0.4 for s in normalize.std)
    assert augment == (Augmentation(normalize, crop=4, flip=True) if channels == 3 else None)
    assert composed(f"data={name}").data.root is None, "without data.root nothing local is looked at"


def test_every_option_is_tried():
    assert {file.stem for file in (CONF / "data").glob("*.yaml")} == {*HUB, "hub", "fashion_mnist_mini"}


def test_coarse_labels_of_cifar100(tmp_path):
    for split in ("train", "test"):
        write_parquet(tmp_path / f"{split}.parquet", pixels(2, 32, 32, 3), [0, 1], None, ("img", "coarse_label"))
    coarse = composed("data=cifar100", f"data.root={tmp_path}", "data.label=coarse_label")
    assert load_data(coarse).classes == ("0", "1")
    with pytest.raises(UsageError, match=r"^data\.label=fine_label: .*did you mean 'coarse_label'"):
        composed("data=cifar100", f"data.root={tmp_path}")


def test_any_data_set_with_all_its_keys(tmp_path):
    file = write_npz(tmp_path / "a.npz", (pixels(4, 6, 6), np.arange(4) % 2), (pixels(2, 6, 6), np.arange(2)))
    config = composed(
        "data=hub", f"data.root={file}", "data.channels=3", "data.size=4", "data.mean=[0.5,0.5,0.5]",
        "data.std=[1,1,1]", "data.augment={crop:1,cutout:2}", "data.test_split=null",
    )  # fmt: skip
    data = load_data(config)
    assert data.input_shape == (3, 4, 4) and data.test is None and data.train.transform.mean == (0.5,) * 3
    assert data.train.augment == Augmentation(data.train.transform, crop=1, cutout=2)
    remote = composed(
        "data=hub", "data.path=beans", "data.image=image", "data.label=labels", "data.config=default"
    ).data
    assert (remote.path, remote.label, remote.config, remote.root) == ("beans", "labels", "default", None)


def test_augmentation_is_switched_off():
    for off in ("data.augment=null", "data.augment={crop:0,flip:false}"):
        data = load_data(composed("data=fashion_mnist_mini", off))
        assert data.train.augment is None
    assert load_data(composed("data.augment.flip=true")).train.augment.flip


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data=hub"], r"^data\.path: names no data set"),
        (["data.augment.crop=-1"], r"^data\.augment\.crop=-1: must be a finite number, at least 0"),
        (["data.augment.cutot=1"], r"^data\.augment\.cutot=1: there is no key .*did you mean 'data\.augment\.cutout'"),
        (["data.augment.flip=left"], r"^data\.augment\.flip=left: must be true or false"),
        (["data=cifar10", "data.root=/nowhere"], r"^data\.root=/nowhere: there is no such folder"),
        (["data=hub", "data.path=a/b", "data.channels=2"], r"^data\.channels=2: must be 1 \(grey\), 3 \(RGB\) or null"),
        (["data=imagenet"], r"^data=imagenet: no such option \(did you mean 'tiny_imagenet'\?\)"),
    ],
)
def test_wrong_values_are_refused_when_they_are_composed(overrides, message):
    with pytest.raises(UsageError, match=message) as caught:
        composed(*overrides)
    assert "\n" not in str(caught.value)
