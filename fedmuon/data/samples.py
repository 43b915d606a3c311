"""A data set as tensors on one device: a batch is a gather by index, there is no loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map


@dataclass
class Samples:
    """`columns`: a tensor [n, ...], or any nesting of tuples, lists and dicts of them, in the layout of a batch.

    transform   turns a gathered batch into what the task takes (scaling, normalisation); it runs on the device
    augment     in place of `transform`, for the batches that clients train on: it may draw random numbers, from torch's
                generator of the device. Evaluation never calls it.
    """

    columns: Any
    transform: Callable[[Any], Any] | None = None
    augment: Callable[[Any], Any] | None = None

    def __len__(self) -> int:
        return len(tree_leaves(self.columns)[0])

    def to(self, device: torch.device) -> Samples:
        """The same samples on another device."""
        return replace(self, columns=tree_map(lambda t: t.to(device), self.columns))

    def take(self, index: Tensor) -> Samples:
        """Those samples only, to evaluate on: `augment` stays behind."""
        return Samples(tree_map(lambda t: t[index.to(t.device)], self.columns), self.transform)

    def batch(self, index: Tensor | slice) -> Any:
        """The batch of these samples to train on: augmented, or else transformed."""
        batch = tree_map(lambda t: t[index], self.columns)
        prepare = self.augment or self.transform
        return batch if prepare is None else prepare(batch)


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
