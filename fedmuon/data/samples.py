"""A data set as tensors on one device: a batch is a gather by index, there is no loader."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map


def each(function: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """tree_map, at a tenth of its cost where a batch is a tuple of tensors, as nearly all are."""
    if type(batch) is tuple and all(isinstance(t, Tensor) for t in batch):
        return tuple(map(function, batch))
    return tree_map(function, batch)


@dataclass
class Samples:
    """`columns`: a tensor [n, ...], or any nesting of tuples, lists and dicts of them, in the layout of a batch.

    transform   turns a gathered batch into what the task takes (scaling, normalisation); it runs on the device
    augment     in place of `transform`, for the batches that clients train on; called with the batch and a key for each
                sample, int32 [batch], from which `fedmuon.keyed` makes random numbers. The batch may hold samples of
                several clients. Evaluation never calls it.
    """

    columns: Any
    transform: Callable[[Any], Any] | None = None
    augment: Callable[[Any, Tensor], Any] | None = None

    def __len__(self) -> int:
        return len(tree_leaves(self.columns)[0])

    def to(self, device: torch.device) -> Samples:
        """The same samples on another device."""
        return replace(self, columns=tree_map(lambda t: t.to(device), self.columns))

    def take(self, index: Tensor) -> Samples:
        """Those samples only, to evaluate on: `augment` stays behind."""
        return Samples(tree_map(lambda t: t[index.to(t.device)], self.columns), self.transform)

    def batch(self, index: Tensor | slice, keys: Tensor | None = None) -> Any:
        """The batch of these samples: augmented where `keys` of them are given, int32 [batch], else transformed."""
        batch = each(lambda t: t[index], self.columns)
        if self.augment is not None and keys is not None:
            return self.augment(batch, keys)
        return batch if self.transform is None else self.transform(batch)

    def sketch(self) -> Tensor:
        """What tells these samples from others, float64 [up to 64 of them, 2, tensors]: for `resembles`.

        Of each sample and tensor its norm, and its product with the same numbers for all.
        """
        count = min(len(self), _SKETCHED)
        index = torch.arange(count) * len(self) // max(1, count)
        each_tensor = []
        for t in tree_leaves(self.columns):
            some = t[index.to(t.device)].cpu()
            some = torch.view_as_real(some) if some.is_complex() else some
            rows = some.double().reshape(count, math.prod(some.shape[1:])).nan_to_num(0, 0, 0)
            products = rows @ torch.arange(rows.shape[1], dtype=torch.float64).cos()
            each_tensor.append(torch.stack([rows.norm(dim=1), products], 1))
        return torch.stack(each_tensor, 2)


_SKETCHED = 64  # samples, evenly spread
_ALIKE = 0.01  # of a sample's norm: more than rounding and decoders of images make, less than another image


def resembles(one: Tensor, other: Tensor) -> bool:
    """Whether two sketches can be of the same samples, read on other machines maybe."""
    if one.shape != other.shape:
        return False
    return bool(((one == other) | ((one - other).abs() <= _ALIKE * one[:, :1])).all())  # equal ones may be infinite


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
