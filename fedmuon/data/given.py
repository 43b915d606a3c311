"""Data that a user already has in Python: tensors, data sets, loaders and DataModules become samples."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import numpy as np
import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from fedmuon.data.samples import Samples
from fedmuon.errors import UsageError


def as_samples(data: Any, key: str) -> Samples:
    """`data` in memory, in the layout of its batches; `key` names it in errors.

    Takes Samples, a tensor or nested tuples, lists and dicts of tensors [n, ...], a map-style Dataset or a DataLoader
    of one (its collate_fn makes the batch). A Dataset is read once, which is said: random augmentation belongs in
    `Samples.augment`. Raises UsageError.
    """
    name = type(data).__name__
    if isinstance(data, Samples):
        return _checked(data, f"{key}={name}")
    collate = default_collate
    if isinstance(data, DataLoader):
        data, collate = data.dataset, data.collate_fn or default_collate
        name = type(data).__name__
    if type(data) is TensorDataset and collate is default_collate:
        return _checked(Samples(tuple(data.tensors)), f"{key}={name}")
    if isinstance(data, IterableDataset) or (isinstance(data, Dataset) and not isinstance(data, Sized)):
        raise UsageError(f"{key}={name}: has no length; clients are lists of indices, give a map-style data set")
    if not isinstance(data, Dataset):
        return _checked(Samples(data), f"{key}={name}")
    count = len(data)  # type: ignore[arg-type]
    if not count:
        raise UsageError(f"{key}={name}: is empty")
    try:
        samples = Samples(collate([data[i] for i in range(count)]))
    except (RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"{key}={name}: its samples do not make one batch ({error})") from error
    _checked(samples, f"{key}={name}")
    if len(samples) != count:
        raise UsageError(
            f"{key}={name}: its {count} samples make a batch of {len(samples)}; every tensor of a batch must be "
            "[samples, ...], for example with batch_first=True"
        )
    print(
        f"fedmuon: {key}={name}: {count} samples are read once, their transforms with them; "
        "augmentation anew at every step belongs in fedmuon.data.Samples(tensors, augment=...)",
        flush=True,
    )
    return samples


def _checked(samples: Samples, given: str) -> Samples:
    """The same; errors begin with `given`. Raises UsageError for what holds no samples, or other than tensors."""
    leaves = tree_leaves(samples.columns)
    if other := [type(leaf).__name__ for leaf in leaves if not (isinstance(leaf, Tensor) and leaf.ndim)]:
        raise UsageError(
            f"{given}: must be tensors [n, ...], a map-style Dataset, a DataLoader or a LightningDataModule, whose "
            f"batches hold tensors [n, ...] and nothing else; here is {other[0]}"
        )
    if not leaves or not min(map(len, leaves)):
        raise UsageError(f"{given}: is empty")
    if len({len(leaf) for leaf in leaves}) > 1:
        raise UsageError(
            f"{given}: its tensors have different lengths, {[len(leaf) for leaf in leaves]}; they must agree"
        )
    return samples


def split_module(module: LightningDataModule) -> tuple[DataLoader[Any], DataLoader[Any] | None]:
    """The training and validation loaders of a DataModule."""
    if type(module).train_dataloader is LightningDataModule.train_dataloader:
        raise UsageError(f"train={type(module).__name__}: has no train_dataloader; define one")
    module.prepare_data()
    module.setup("fit")
    overrides = type(module).val_dataloader is not LightningDataModule.val_dataloader
    return module.train_dataloader(), module.val_dataloader() if overrides else None


def labels_of(data: Any, samples: Samples) -> np.ndarray | None:
    """The labels that partitions follow, int64 [n]: `.targets`, `.labels`, else the last integer column."""
    data = data.dataset if isinstance(data, DataLoader) else data
    for name in ("targets", "labels"):
        if (found := getattr(data, name, None)) is not None and np.ndim(found) == 1 and len(found) == len(samples):
            return np.asarray(found, dtype=np.int64)
    columns = [
        leaf
        for leaf in tree_leaves(samples.columns)
        if leaf.ndim == 1 and not leaf.is_floating_point() and leaf.dtype != torch.bool
    ]
    return columns[-1].cpu().numpy().astype(np.int64) if columns else None
