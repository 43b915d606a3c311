"""What a client of partition=feature_shift sees: its images turned, and with noise."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample


def shifted(images: Tensor, noise: float, degrees: float, generator: torch.Generator | None = None) -> Tensor:
    """Normalised images [batch, channels, height, width], turned by `degrees` counter-clockwise and with noise added.

    noise: standard deviation, in units of the normalised values; drawn anew for every batch from `generator`, which
    lives on the images' device (NIID-Bench, arXiv 2102.02079). Pixels that a rotation brings in from outside are 0,
    the channel's mean. Multiples of 90 degrees of square images are exact, others bilinear. Returns the images
    themselves where both numbers are 0.
    """
    quarters, rest = divmod(degrees, 90)
    if rest == 0 and (images.shape[-1] == images.shape[-2] or quarters % 2 == 0):
        images = torch.rot90(images, int(quarters), (-2, -1)) if quarters % 4 else images
    else:
        images = _turned(images, math.radians(degrees))
    if noise:
        drawn = torch.randn(images.shape, generator=generator, device=images.device, dtype=images.dtype)
        images = images + noise * drawn
    return images


def _turned(images: Tensor, radians: float) -> Tensor:
    height, width = images.shape[-2:]
    cos, sin = math.cos(radians), math.sin(radians)
    # affine_grid's coordinates run from -1 to 1 in both directions, so the angle is bent by the aspect ratio.
    inverse = torch.tensor(
        [[cos, -sin * height / width, 0], [sin * width / height, cos, 0]], device=images.device, dtype=images.dtype
    )
    grid = affine_grid(inverse.expand(len(images), 2, 3), list(images.shape), align_corners=False)
    return grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
