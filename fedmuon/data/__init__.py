"""Data sets, partitions, cohorts and batches. What needs torch is loaded on first use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmuon.data.batching import batches
from fedmuon.data.partition import Partition
from fedmuon.data.partitions import dirichlet, iid

if TYPE_CHECKING:
    from fedmuon.data.dataset import DataSet as DataSet
    from fedmuon.data.dataset import image_data as image_data
    from fedmuon.data.samples import Samples as Samples

EMBEDDED = Path(__file__).parent / "embedded" / "fashion_mnist_mini"  # what data=fashion_mnist_mini reads

__all__ = ["EMBEDDED", "DataSet", "Partition", "Samples", "batches", "dirichlet", "iid", "image_data"]


def __getattr__(name: str) -> Any:
    if name in ("DataSet", "image_data"):
        from fedmuon.data import dataset

        return getattr(dataset, name)
    if name == "Samples":
        from fedmuon.data.samples import Samples

        return Samples
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
