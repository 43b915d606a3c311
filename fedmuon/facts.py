"""What a run's configuration says of a module and of data that Python gave: enough for a report to tell runs apart.

The same whatever the seed is, and no more than that: a resumed run is not compared by it.
"""

from __future__ import annotations

import re
from typing import Any

from lightning import LightningModule
from torch.utils._pytree import tree_leaves

from fedmuon.data.dataset import DataSet
from fedmuon.job import digest


def of_module(module: LightningModule) -> dict[str, Any]:
    """Its class, its hyperparameters as far as they are plain values, and a digest of what it consists of."""
    plain = {
        str(key): value.replace("${", r"\${") if isinstance(value, str) else value
        for key, value in module.hparams.items()
        if type(value) in (bool, int, float, str) and key != "seed"
    }
    printed = re.sub(r"\b0x[0-9a-f]+", "", repr(module))  # addresses
    structure = digest([printed, [name for name, _ in module.named_parameters()]])
    return {"name": type(module).__name__, **({"hparams": plain} if plain else {}), "structure": structure}


def of_data(data: DataSet) -> dict[str, Any]:
    """The number of samples, and dtype and shape of each of their tensors."""
    columns = [f"{str(t.dtype).removeprefix('torch.')} {list(t.shape[1:])}" for t in tree_leaves(data.train.columns)]
    tested = {} if data.test is None else {"test_samples": len(data.test)}
    return {"name": "given", "samples": len(data.train), **tested, "columns": columns}
