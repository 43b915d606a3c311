"""A data set as tensors on one device: a batch is a gather by index, there is no loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map


@dataclass
class Samples:
    """`columns`: a tensor [n, ...], or any nesting of tuples, lists and dicts of them, in the layout of a batch.

    `transform` turns a gathered batch into what the task takes (scaling, normalisation); it runs on the device.
    """

    columns: Any
    transform: Callable[[Any], Any] | None = None

    def __len__(self) -> int:
        return len(tree_leaves(self.columns)[0])

    def to(self, device: torch.device) -> Samples:
        """The same samples on another device."""
        return Samples(tree_map(lambda t: t.to(device), self.columns), self.transform)

    def take(self, index: Tensor) -> Samples:
        """Those samples only."""
        return Samples(tree_map(lambda t: t[index.to(t.device)], self.columns), self.transform)

    def batch(self, index: Tensor | slice) -> Any:
        """The batch of these samples, transformed."""
        batch = tree_map(lambda t: t[index], self.columns)
        return batch if self.transform is None else self.transform(batch)


@dataclass
class Batches:
    """The samples in order, in batches, untransformed: what Lightning's evaluation loop iterates over."""

    samples: Samples
    size: int

    def __len__(self) -> int:
        return -(-len(self.samples) // self.size)

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self.samples), self.size):
            yield tree_map(lambda t, s=start: t[s : s + self.size], self.samples.columns)


@dataclass(frozen=True)
class Normalize:
    """uint8 images [n, c, h, w] to floats, (x / 255 - mean) / std by channel, in torch's default dtype."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        images, labels = batch
        dtype = torch.get_default_dtype()
        mean, std = (torch.tensor(v, dtype=dtype, device=images.device).view(-1, 1, 1) for v in (self.mean, self.std))
        return images.to(dtype).sub_(mean * 255).div_(std * 255), labels
