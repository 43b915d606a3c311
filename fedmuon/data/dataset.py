"""What a data set is to an experiment, and the one that reads Parquet files of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedmuon.data import EMBEDDED
from fedmuon.data.images import ImageSet, load_parquet
from fedmuon.data.parquet import find_split
from fedmuon.data.samples import Normalize, Samples


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


def parquet_images(
    root: str | None = None,
    image: str = "image",
    label: str = "label",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> DataSet:
    """Images from the Parquet files of a local folder, or from the embedded ones; kept as uint8, normalised in every batch.

    mean, std: by channel, of images scaled to 0..1; None measures them on the training images. Raises UsageError.
    """
    folder = EMBEDDED if root is None else Path(root)
    train, classes = load_parquet(find_split(folder, "train"), image, label)
    test, _ = load_parquet(find_split(folder, "test"), image, label, channels=train.images.shape[1])
    measured = _statistics(train) if mean is None or std is None else (mean, std)
    normalize = Normalize(tuple(mean or measured[0]), tuple(std or measured[1]))
    return DataSet(
        train=Samples((train.images, train.labels), normalize),
        test=Samples((test.images, test.labels), normalize),
        labels=train.labels.numpy(),
        classes=classes,
        input_shape=tuple(train.images.shape[1:]),
    )


def _statistics(images: ImageSet) -> tuple[list[float], list[float]]:
    """Mean and deviation of each channel over all training pixels, scaled to 0..1."""
    counts = [np.bincount(images.images[:, c].flatten().numpy(), minlength=256) for c in range(images.images.shape[1])]
    values = np.arange(256) / 255
    means = [float(n @ values / n.sum()) for n in counts]
    deviations = [float(np.sqrt(n @ (values - m) ** 2 / n.sum())) or 1.0 for n, m in zip(counts, means, strict=True)]
    return means, deviations
