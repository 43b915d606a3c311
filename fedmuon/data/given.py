"""Data that a user already has in Python: tensors, data sets, loaders and DataModules become samples."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any

import numpy as np
import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

from fedmuon.data.dataset import DataSet
from fedmuon.data.samples import Samples
from fedmuon.errors import UsageError

_COLUMNS = (Tensor, np.ndarray, tuple, list, Mapping)  # taken as they are; else what has a length and items is read
_LABELS = ("label", "labels", "target", "targets", "y")  # as batches that are dicts call them


def read(train: Any, val: Any, test: Any) -> tuple[DataSet, Samples | None]:
    """What to train and test on, and what validates: `val`, else the val_dataloader of a LightningDataModule.

    Each is what `as_samples` takes; `val` and `test` may be None.
    """
    if isinstance(train, LightningDataModule):
        train, loader = split_module(train)
        val = loader if val is None else val
    samples = as_samples(train, "train")
    tested = None if test is None else as_samples(test, "test")
    validates = None if val is None else as_samples(val, "val")
    return DataSet(samples, tested, labels_of(train, samples), (), ()), validates


def as_samples(data: Any, key: str) -> Samples:
    """`data` in memory, in the layout of its batches; `key` names it in errors.

    Takes Samples; a tensor or NumPy array, or nested tuples, lists and dicts of them, each [n, ...] (no list of tuples,
    lists or dicts, which could be the samples); a map-style data set: torch's Dataset, one of `datasets`, anything else
    with __len__ and __getitem__; a DataLoader of one (its collate_fn makes the batch, of a SubsetRandomSampler the
    indices count, in their order). A data set is read once, which is said: random augmentation belongs in
    `Samples.augment`. Raises UsageError.
    """
    name = type(data).__name__
    if isinstance(data, Samples):
        return _checked(data, f"{key}={name}")
    collate, columns = default_collate, isinstance(data, _COLUMNS)
    if isinstance(data, DataLoader):
        name, collate = type(data.dataset).__name__, data.collate_fn or default_collate
        data = _drawn(data, key)
    if type(data) is TensorDataset and collate is default_collate:
        return _checked(Samples(tuple(data.tensors)), f"{key}={name}")
    if isinstance(data, IterableDataset) or (isinstance(data, Dataset) and not isinstance(data, Sized)):
        raise UsageError(f"{key}={name}: has no length; clients are lists of indices, give a map-style data set")
    if isinstance(data, list) and columns and data and all(isinstance(one, tuple | list | Mapping) for one in data):
        raise UsageError(
            f"{key}=list: of {len(data)} times {type(data[0]).__name__}, which could be samples or columns; give "
            "samples as a DataLoader of the list, columns as a tuple of tensors [n, ...], such as (images, labels)"
        )
    if columns or not (isinstance(data, Sized) and hasattr(data, "__getitem__")):
        return _checked(Samples(tree_map(_tensor, data)), f"{key}={name}")
    count = len(data)
    if not count:
        raise UsageError(f"{key}={name}: is empty")
    each = [_sample(data, index, f"{key}={name}") for index in range(count)]
    try:
        samples = Samples(collate(each))
    except Exception as error:  # of a collate_fn of one's own
        raise UsageError(
            f"{key}={name}: its samples do not make one batch ({type(error).__name__}: {error}); make tensors of one "
            "shape of them, in the data set or in the collate_fn of a DataLoader"
        ) from error
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


def _sample(data: Any, index: int, given: str) -> Any:
    try:
        return data[index]
    except Exception as error:
        raise UsageError(
            f"{given}: sample {index} cannot be read ({type(error).__name__}: {error}); its __getitem__ must take "
            f"every whole number from 0 to {len(data) - 1}"
        ) from error


def _tensor(leaf: Any) -> Any:
    """A tensor of the same numbers, shared where they can be written; what is no array of numbers stays as it is."""
    if not isinstance(leaf, np.ndarray) or isinstance(leaf, np.ma.MaskedArray):
        return leaf
    try:
        return torch.from_numpy(np.require(leaf, leaf.dtype.newbyteorder("="), ["C", "W"]))
    except (TypeError, ValueError):  # texts, objects
        return leaf


def _checked(samples: Samples, given: str) -> Samples:
    """The same; errors begin with `given`. Raises UsageError for what holds no samples, or other than tensors."""
    leaves = tree_leaves(samples.columns)
    if other := [leaf for leaf in leaves if not (isinstance(leaf, Tensor) and leaf.ndim)]:
        kind = f"{type(other[0]).__name__}{f' of {other[0].dtype}' if isinstance(other[0], np.ndarray) else ''}"
        raise UsageError(
            f"{given}: must be tensors or arrays [n, ...], a data set with __len__ and __getitem__, a DataLoader or a "
            f"LightningDataModule, whose batches hold tensors [n, ...] and nothing else; here is {kind}"
        )
    if not leaves or not min(map(len, leaves)):
        raise UsageError(f"{given}: is empty")
    if len({len(leaf) for leaf in leaves}) > 1:
        raise UsageError(
            f"{given}: its tensors have different lengths, {[len(leaf) for leaf in leaves]}; they must agree"
        )
    return samples


def _drawn(loader: DataLoader[Any], key: str) -> Any:
    """What a loader draws each sample of once an epoch. Raises UsageError where it draws in a way of its own."""
    data, batches = loader.dataset, loader.batch_sampler
    if isinstance(data, IterableDataset) or not isinstance(data, Sized):
        return data
    sampler = batches.sampler if type(batches) is BatchSampler else batches
    if type(sampler) is SubsetRandomSampler:
        return Subset(data, list(sampler.indices))
    whole = type(sampler) in (SequentialSampler, RandomSampler) and len(sampler) == len(data)  # type: ignore[arg-type]
    if type(sampler) is DistributedSampler or (whole and not getattr(sampler, "replacement", False)):
        return data
    raise UsageError(
        f"{key}=DataLoader: {'batch_size=None' if batches is None else type(sampler).__name__} is not followed, since "
        "clients draw batches of their own; give the data set, or of a part torch.utils.data.Subset(dataset, indices)"
    )


def split_module(module: LightningDataModule) -> tuple[DataLoader[Any], DataLoader[Any] | None]:
    """The training and validation loaders of a DataModule."""
    if type(module).train_dataloader is LightningDataModule.train_dataloader:
        raise UsageError(f"train={type(module).__name__}: has no train_dataloader; define one")
    module.prepare_data()
    module.setup("fit")
    overrides = type(module).val_dataloader is not LightningDataModule.val_dataloader
    return module.train_dataloader(), module.val_dataloader() if overrides else None


def labels_of(data: Any, samples: Samples) -> np.ndarray | None:
    """The labels that partitions follow, int64 [n]; None where there are none.

    `.targets` or `.labels` of the data set, whole numbers or texts; of a batch that is a dict what is called so, if
    anything is; else the last integer column.
    """
    data = _drawn(data, "train") if isinstance(data, DataLoader) else data
    for name in ("targets", "labels"):
        if (found := _classes(getattr(data, name, None), len(samples))) is not None:
            return found
    columns = samples.columns
    if isinstance(columns, Mapping) and (named := [columns[name] for name in _LABELS if name in columns]):
        columns = named[::-1]
    whole = [
        leaf
        for leaf in tree_leaves(columns)
        if leaf.ndim == 1 and not leaf.is_floating_point() and leaf.dtype != torch.bool
    ]
    return whole[-1].cpu().numpy().astype(np.int64) if whole else None


def _classes(found: Any, count: int) -> np.ndarray | None:
    """`found` as classes int64 [count], texts numbered in their order; None where it is anything else."""
    try:
        array = np.asarray(found.tolist() if isinstance(found, Tensor) else found)
    except ValueError:  # rows of different lengths
        return None
    if array.shape != (count,):
        return None
    if all(isinstance(one, str) for one in array):
        return np.unique(array.astype(str), return_inverse=True)[1].astype(np.int64)
    return array.astype(np.int64) if array.dtype.kind in "iub" else None
