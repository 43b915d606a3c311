"""Normalisation, and random crop, flip and cutout: whole batches at once, on the device of the batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedmuon import keyed

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Normalize:
    """uint8 images [n, c, h, w] to floats, (x / 255 - mean) / std by channel, in torch's default dtype."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, batch: Batch) -> Batch:
        images, labels = batch
        dtype = torch.get_default_dtype()
        mean, std = _constants(self.mean, self.std, dtype, images.device)
        return images.to(dtype).sub_(mean).div_(std), labels


@lru_cache(maxsize=32)
def _constants(
    mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """255 mean and 255 std, [c, 1, 1]; kept, as a copy to the device is not allowed while a CUDA graph is captured."""
    with torch.inference_mode(False):
        shift, scale = (torch.tensor(values, dtype=dtype, device=device).view(-1, 1, 1) * 255 for values in (mean, std))
    return shift, scale


@dataclass(frozen=True)
class Augmentation:
    """What training batches go through: crop and flip of the uint8 images, `normalize`, cutout.

    crop    so many black pixels are added on each side, then an image of the old size is cut out at random
    flip    left and right are exchanged with probability 1/2
    cutout  side of a square of the mean colour at a random place, which may reach over the border (arXiv 1708.04552)

    Every sample has its own draws, a hash of its key (`fedmuon.keyed`), int32 [n], which is a function of (seed, round,
    client, local step, position): batches of several clients can be one. No value is read back from the device.
    """

    normalize: Normalize
    crop: int = 0
    flip: bool = False
    cutout: int = 0

    def __call__(self, batch: Batch, keys: Tensor) -> Batch:
        images, labels = batch
        height, width = images.shape[2:]
        if self.crop or self.flip:
            top, left = (keyed.integers(keys, side, 2 * self.crop + 1) for side in ("top", "left"))
            flipped = keyed.uniform(keys, "flip") < 0.5 if self.flip else None
            images = crop_and_flip(images, top, left, flipped, self.crop)
        images, labels = self.normalize((images, labels))
        if self.cutout:
            rows, columns = keyed.integers(keys, "row", height), keyed.integers(keys, "column", width)
            images = cut_out(images, rows, columns, self.cutout)
        return images, labels


def crop_and_flip(images: Tensor, top: Tensor, left: Tensor, flipped: Tensor | None, padding: int) -> Tensor:
    """Images [n, c, h, w] padded by zeros, cut at (top, left) in 0..2*padding, mirrored where `flipped`, bool [n]."""
    n, channels, height, width = images.shape
    rows, columns = (torch.arange(side, device=images.device) for side in (height, width))
    if flipped is not None:
        columns = torch.where(flipped[:, None], width - 1 - columns, columns)
    rows, columns = top[:, None] + rows, left[:, None] + columns
    pixel = rows[:, :, None] * (width + 2 * padding) + columns[:, None, :]  # one gather does both; indexing is slower
    padded = pad(images, (padding,) * 4).flatten(2)
    return padded.gather(2, pixel.flatten(1)[:, None].expand(n, channels, -1)).view(n, channels, height, width)


def cut_out(images: Tensor, rows: Tensor, columns: Tensor, size: int) -> Tensor:
    """Images [n, c, h, w], zero in a square of `size` around (rows, columns), int [n], as far as it lies inside."""
    height, width = images.shape[-2:]
    down = torch.arange(height, device=images.device) - (rows - size // 2)[:, None]
    across = torch.arange(width, device=images.device) - (columns - size // 2)[:, None]
    inside = ((down >= 0) & (down < size))[:, :, None] & ((across >= 0) & (across < size))[:, None, :]
    return images.masked_fill(inside[:, None], 0)
