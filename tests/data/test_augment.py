"""Normalisation and augmentation against torchvision, and where augmentation applies."""

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

from fedmuon import keyed
from fedmuon.data import DataSet, image_data
from fedmuon.data.augment import Augmentation, Normalize, crop_and_flip, cut_out
from fedmuon.data.samples import Batches, Samples
from tests.data.pictures import pixels, write_npz

IMAGES = torch.from_numpy(pixels(8, 3, 6, 5))
LABELS = torch.arange(8)
PLAIN = Normalize((0.0,) * 3, (1 / 255,) * 3)  # the pixels themselves, as floats


def keys(count, seed=0, step=1):
    return keyed.of_samples(torch.tensor(keyed.of_step(seed, step), dtype=torch.int32), count)


def test_normalize_is_torchvision_s():
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
    expected = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)])(IMAGES)
    images, labels = Normalize(mean, std)((IMAGES, LABELS))
    assert images.dtype == torch.float32 and torch.equal(labels, LABELS)
    torch.testing.assert_close(images, expected, rtol=1e-5, atol=1e-5)


def test_crop_and_flip_give_torchvision_s_pixels():
    top, left = torch.tensor([0, 1, 2, 3, 4, 2, 0, 4]), torch.tensor([4, 3, 2, 1, 0, 2, 0, 4])
    flipped = torch.tensor([True, False] * 4)
    found = crop_and_flip(IMAGES, top, left, flipped, 2)
    assert found.dtype == torch.uint8
    for i in range(8):
        expected = tv.crop(tv.pad(IMAGES[i], [2]), int(top[i]), int(left[i]), 6, 5)
        assert torch.equal(found[i], tv.horizontal_flip(expected) if flipped[i] else expected)
    assert torch.equal(crop_and_flip(IMAGES, top, left, None, 2)[1::2], found[1::2])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_cutout_erases_torchvision_s_square_as_far_as_it_lies_inside(size):
    rows, columns = torch.tensor([3, 0, 5, 2, 3, 0, 5, 1]), torch.tensor([2, 0, 4, 1, 3, 4, 0, 2])
    floats = IMAGES.float() + 1
    found = cut_out(floats, rows, columns, size)
    for i in range(8):
        top, left = int(rows[i]) - size // 2, int(columns[i]) - size // 2
        height, width = size + min(top, 0), size + min(left, 0)
        expected = tv.erase(floats[i], max(top, 0), max(left, 0), height, width, torch.tensor(0.0))
        assert torch.equal(found[i], expected)


def test_every_sample_has_its_own_draws_over_the_whole_range():
    """A single bright pixel in the middle tells offset and flip of each of many samples."""
    n, crop = 4000, 2
    images = torch.zeros(n, 1, 7, 7, dtype=torch.uint8)
    images[:, :, 3, 2] = 255
    out, _ = Augmentation(Normalize((0.0,), (1.0,)), crop=crop, flip=True)((images, torch.zeros(n)), keys(n))
    row, column = (out[:, 0].flatten(1).argmax(1) // 7).numpy(), (out[:, 0].flatten(1).argmax(1) % 7).numpy()
    assert (out.flatten(1).sum(1) == 1).all()
    assert np.bincount(row, minlength=7)[1:6].min() > 0.8 * n / 5 and not np.bincount(row, minlength=7)[[0, 6]].any()
    # unflipped columns are 0..4 and flipped ones 2..6, uniformly: 1, 1, 2, 2, 2, 1, 1 tenths
    assert np.bincount(column, minlength=7) / n == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.2, 0.1, 0.1], abs=0.03)
    assert abs(np.corrcoef(row, column)[0, 1]) < 0.05


def test_cutout_comes_after_normalisation_and_is_its_zero():
    out, _ = Augmentation(Normalize((0.5,) * 3, (0.1,) * 3), cutout=2)((IMAGES, LABELS), keys(8))
    assert ((out == 0).all(1).flatten(1).sum(1) >= 1).all() and ((out == 0).all(1).flatten(1).sum(1) <= 4).all()


def test_cutout_is_centred_uniformly_over_the_image():
    n = 6000
    ones = torch.full((n, 1, 4, 3), 255, dtype=torch.uint8)
    out, _ = Augmentation(Normalize((0.0,), (1.0,)), cutout=1)((ones, torch.zeros(n)), keys(n))
    erased = (out == 0).flatten(1)
    assert (erased.sum(1) == 1).all()
    assert erased.float().mean(0).numpy() == pytest.approx(np.full(12, 1 / 12), abs=0.012)


def test_the_draws_are_a_function_of_seed_step_and_position():
    augment = Augmentation(PLAIN, crop=2, flip=True, cutout=2)
    outs = [augment((IMAGES, LABELS), keys(8, seed, step))[0] for seed, step in ((3, 1), (3, 1), (4, 1), (3, 2))]
    assert torch.equal(outs[0], outs[1]) and not any(torch.equal(outs[0], other) for other in outs[2:])
    assert torch.equal(augment((IMAGES[:3], LABELS[:3]), keys(3, 3))[0], outs[0][:3])


def test_several_clients_in_one_batch_see_what_each_sees_alone():
    augment = Augmentation(PLAIN, crop=2, flip=True, cutout=2)
    each = [keys(8, seed) for seed in range(3)]
    together, _ = augment((IMAGES.repeat(3, 1, 1, 1), LABELS.repeat(3)), torch.cat(each))
    for part, own in zip(together.split(8), each, strict=True):
        assert torch.equal(part, augment((IMAGES, LABELS), own)[0])
    rows = torch.arange(24).view(3, 8) % 5
    flips = rows % 2 == 0
    found = torch.func.vmap(lambda x, r, f: crop_and_flip(x, r, r, f, 2))(IMAGES.expand(3, *IMAGES.shape), rows, flips)
    assert all(torch.equal(found[c], crop_and_flip(IMAGES, rows[c], rows[c], flips[c], 2)) for c in range(3))


def test_constants_made_while_evaluating_serve_training_too():
    normalize = Normalize((0.123,) * 3, (0.2,) * 3)
    with torch.inference_mode():
        normalize((IMAGES, LABELS))
    weight = torch.ones(3, 1, 1, requires_grad=True)
    (normalize((IMAGES, LABELS))[0] * weight).sum().backward()
    assert torch.isfinite(weight.grad).all()


@pytest.fixture
def data(tmp_path) -> DataSet:
    train, labels = pixels(6, 8, 8, 3), np.arange(6) % 2
    return image_data(
        str(write_npz(tmp_path / "a.npz", (train, labels), (train, labels))),
        augment={"crop": 2, "flip": True, "cutout": 2},
    )


def test_only_what_clients_train_on_is_augmented(data):
    index = torch.arange(6)
    raw = data.train.columns[0]
    plain = data.train.transform((raw, index))[0]
    assert not torch.equal(data.train.batch(index, keys(6))[0], plain)
    assert torch.equal(data.train.batch(index)[0], plain), "no keys, no random numbers"
    held_out, test = data.train.take(index), data.test
    for samples in (held_out, test, held_out.to(torch.device("cpu"))):
        assert samples.augment is None and torch.equal(samples.batch(index)[0], plain)
        (batch,) = Batches(samples, 100)
        assert torch.equal(batch[0], raw), "evaluation sees raw batches and calls `transform` itself"
    assert data.train.to(torch.device("cpu")).augment is data.train.augment is not None


def test_without_augmentation_nothing_random_is_drawn(tmp_path):
    train, labels = pixels(4, 8, 8), np.arange(4) % 2
    data = image_data(str(write_npz(tmp_path / "a.npz", (train, labels), (train, labels))))
    before = torch.get_rng_state()
    data.train.batch(torch.arange(4), keys(4))
    assert data.train.augment is None and torch.equal(torch.get_rng_state(), before)


def test_samples_without_transform_are_what_they_are():
    assert torch.equal(Samples((IMAGES, LABELS)).batch(slice(2, 4))[1], LABELS[2:4])
    own = Samples(LABELS, lambda b: b * 2, augment=lambda b, keys: b * 3)
    assert own.batch(torch.tensor([1]), keys(1)).item() == 3
