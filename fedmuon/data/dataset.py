"""What a data set is to an experiment, and image classification as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmuon.config import Augment
from fedmuon.data import cache
from fedmuon.data.augment import Augmentation, Normalize, crop_and_flip
from fedmuon.data.images import decode
from fedmuon.data.labels import class_numbers
from fedmuon.data.samples import Samples
from fedmuon.data.sources import Source
from fedmuon.errors import UsageError
from fedmuon.randomness import stream


@dataclass
class DataSet:
    """Training and test samples in the layout of a batch, (images, labels) for images.

    labels: of the training samples, int64 [n], for partitions that follow them; None where there are none.
    input_shape: of one sample, (channels, height, width) for images.
    """

    train: Samples
    test: Samples | None
    labels: np.ndarray | None
    classes: tuple[str, ...]
    input_shape: tuple[int, ...]


def image_data(
    root: str | None = None,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    augment: Augment | Mapping[str, Any] | None = None,
    test_crop: int = 0,
    **source: Any,
) -> DataSet:
    """Images as uint8 tensors, normalised in every batch and, where clients train on them, augmented.

    root, source   what `fedmuon.data.sources.Source` takes: a local folder or .npz, a data set of the hub, columns, ...
    mean, std      by channel, of images scaled to 0..1; None measures them on the training images
    augment        crop, flip and cutout, see `Augmentation`; None leaves images as they are
    test_crop      above 0 each test image is cut out at random from so many pixels of padding, once, whatever the seed:
                   a mistake of published code (arXiv 2510.27403) that lowers the accuracy; 0 leaves them as they are

    Decoded images are kept in the cache folder (`fedmuon.data.cache`). Raises UsageError for data that cannot be used.
    """
    try:
        chosen = Source(root, **source)
    except TypeError:
        known = ", ".join(field.name for field in fields(Source))
        unknown = ", ".join(source.keys() - {field.name for field in fields(Source)})
        raise UsageError(f"data.{unknown}: there is no such key; allowed: {known}") from None
    chosen.check()
    tensors, facts = decoded(chosen)
    images = tensors["train_images"]
    normalize = Normalize(
        _by_channel("mean", mean or facts["mean"], images), _by_channel("std", std or facts["std"], images)
    )
    wanted = Augment(**augment) if isinstance(augment, Mapping) else augment or Augment()
    augmentation = Augmentation(normalize, wanted.crop, wanted.flip, wanted.cutout)
    if wanted.cutout > min(images.shape[2:]):
        raise UsageError(
            f"data.augment.cutout={wanted.cutout}: must be at most {min(images.shape[2:])}, an image's side"
        )
    test = (tensors["test_images"], tensors["test_labels"]) if "test_images" in tensors else None
    if test and test_crop:
        test = (_cropped_at_random(test[0], test_crop), test[1])
    return DataSet(
        train=Samples((images, tensors["train_labels"]), normalize, augmentation if wanted != Augment() else None),
        test=Samples(test, normalize) if test else None,
        labels=tensors["train_labels"].numpy(),
        classes=tuple(facts["classes"]),
        input_shape=tuple(images.shape[1:]),
    )


def decoded(source: Source) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """train_images, uint8 [n, c, h, w], train_labels, int64 [n], those of the test split, from the cache or decoded.

    The figures beside them are the class names and, by channel, mean and deviation of the training images.
    """
    file = cache.entry(source.identity())
    kept = cache.load(file)
    if kept is not None:
        return kept
    splits = source.read()
    labels, classes = class_numbers(splits)
    tensors: dict[str, Tensor] = {}
    channels, size = source.channels, source.size
    for name, split, numbers in zip(("train", "test"), splits, labels, strict=False):
        images = torch.from_numpy(decode(split.images, channels, size, f"{name} images"))
        channels = images.shape[1]  # of the training images, for the test images too
        tensors |= {f"{name}_images": images, f"{name}_labels": torch.from_numpy(numbers)}
    shapes = [tuple(tensors[key].shape[2:]) for key in tensors if key.endswith("images")]
    if len(set(shapes)) > 1:
        raise UsageError(
            f"{splits[1].images.name(0)} of the test split is {shapes[1][1]} x {shapes[1][0]} pixels, the training "
            f"images are {shapes[0][1]} x {shapes[0][0]}; all images must have one size: set data.size, as in "
            f"data.size={shapes[0][0]}"
        )
    mean, std = _statistics(tensors["train_images"])
    facts = {"classes": classes, "mean": mean, "std": std}
    cache.save(file, tensors, facts)
    return tensors, facts


def _cropped_at_random(images: Tensor, padding: int) -> Tensor:
    """Every image cut out of its padded self, at one place for good: evaluation stays free of random numbers."""
    places = stream(0, "test crop").integers(2 * padding + 1, size=(2, len(images)))
    top, left = torch.from_numpy(places)
    return crop_and_flip(images, top, left, None, padding)


def _by_channel(key: str, values: Sequence[float], images: Tensor) -> tuple[float, ...]:
    channels = images.shape[1]
    if len(values) != channels:
        raise UsageError(
            f"data.{key}={list(values)}: must be {channels} numbers, one for each channel of the images, or null to "
            "measure them"
        )
    if key == "std" and min(values) <= 0:
        raise UsageError(f"data.std={list(values)}: every deviation must be above 0")
    return tuple(float(value) for value in values)


def _statistics(images: Tensor) -> tuple[list[float], list[float]]:
    """Mean and deviation of each channel over all pixels, scaled to 0..1; the deviation of a constant channel is 1."""
    values = np.arange(256) / 255
    counts = [torch.bincount(images[:, c].flatten(), minlength=256).numpy() for c in range(images.shape[1])]
    means = [float(n @ values / n.sum()) for n in counts]
    deviations = [float(np.sqrt(n @ (values - m) ** 2 / n.sum())) or 1.0 for n, m in zip(counts, means, strict=True)]
    return means, deviations
