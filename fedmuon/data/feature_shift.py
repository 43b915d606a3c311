"""What a client of partition=feature_shift sees: its images turned, and with noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from fedmuon import keyed


@dataclass(frozen=True)
class Shift:
    """Of each client of a stack: the noise's deviation and the angle in degrees, [C]; None where all of them are 0."""

    noise: Tensor | None
    degrees: Tensor | None

    @staticmethod
    def of(features: Sequence[tuple[float, ...]], device: torch.device) -> Shift | None:
        """From the (noise, degrees) of each client; None where nobody's images are changed."""
        columns = [
            torch.tensor(values, dtype=torch.float32, device=device) if any(values) else None
            for values in zip(*[one or (0.0, 0.0) for one in features], strict=True)
        ]
        return Shift(*columns) if any(column is not None for column in columns) else None

    def rows(self, rows: slice | Sequence[int] | Tensor) -> Shift:
        """Some of the clients."""
        return Shift(*(None if t is None else t[rows] for t in (self.noise, self.degrees)))

    @property
    def changes(self) -> tuple[bool, bool]:
        """Whether there is noise, and whether images are turned."""
        return self.noise is not None, self.degrees is not None

    @property
    def columns(self) -> tuple[Tensor, ...]:
        """Those that are not None."""
        return tuple(t for t in (self.noise, self.degrees) if t is not None)

    def around(self, tensors: Iterator[Tensor]) -> Shift:
        """The same with other tensors, in the order of `columns`."""
        return Shift(*(None if t is None else next(tensors) for t in (self.noise, self.degrees)))

    def __call__(self, images: Tensor, keys: Tensor) -> Tensor:
        """The images [C * batch, ...] of those clients, one client's after the other; keys of samples [C * batch]."""
        noise, degrees = (
            None if t is None else t[:, None].expand(-1, len(images) // len(t)).reshape(-1)
            for t in (self.noise, self.degrees)
        )
        with torch.autocast(images.device.type, enabled=False):  # in bfloat16 the positions of pixels would be off
            return shifted(images, noise, degrees, keys)


def shifted(images: Tensor, noise: Tensor | None, degrees: Tensor | None, keys: Tensor) -> Tensor:
    """Normalised images [n, channels, height, width], each turned by `degrees` counter-clockwise, with noise added.

    noise: standard deviation, in units of the normalised values, [n]; drawn anew for every batch (NIID-Bench, arXiv
    2102.02079), from the sample's key, int32 [n]. Pixels that a rotation brings in from outside are 0, the channel's
    mean. Multiples of 90 degrees of square images are exact, others bilinear. An image whose numbers are 0 stays as it
    is.
    """
    if degrees is not None:
        turned = _turned(images, degrees)
        for quarters in range(4) if images.shape[-1] == images.shape[-2] else (0, 2):
            exact = _column(degrees.remainder(360) == 90 * quarters)
            turned = torch.where(exact, torch.rot90(images, quarters, (-2, -1)), turned)
        images = turned
    if noise is not None:
        drawn = keyed.normal(keys, "noise", images.shape[1:], images.dtype)
        images = images + _column(noise.to(images.dtype)) * drawn
    return images


def _turned(images: Tensor, degrees: Tensor) -> Tensor:
    height, width = images.shape[-2:]
    radians = torch.deg2rad(degrees.to(images.dtype))
    cos, sin, none = radians.cos(), radians.sin(), torch.zeros_like(radians)
    # affine_grid's coordinates run from -1 to 1 in both directions, so the angle is bent by the aspect ratio.
    inverse = torch.stack([cos, -sin * height / width, none, sin * width / height, cos, none], 1).view(-1, 2, 3)
    grid = affine_grid(inverse, list(images.shape), align_corners=False)
    return grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _column(value: Tensor) -> Tensor:
    return value.view(-1, 1, 1, 1)
