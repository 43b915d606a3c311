"""The final model of a run: a safetensors file that needs no training code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from lightning import LightningModule
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from fedmuon.compose import checked
from fedmuon.errors import UsageError
from fedmuon.resuming import stored
from fedmuon.tasks import ImageClassification


def network_of(task: LightningModule) -> nn.Module:
    """What is saved of a task: the network of the repository's own, a user's module as a whole."""
    return task.network if isinstance(task, ImageClassification) else task


def save(task: LightningModule, classes: Sequence[str], path: Path) -> None:
    """Write the weights atomically, tied ones once; the metadata has the class names, a JSON list under "classes"."""
    beside = path.with_name(f".{path.name}.part")
    tensors, seen = {}, set()
    for name, tensor in network_of(task).state_dict().items():
        if tensor.data_ptr() not in seen or not tensor.numel():
            seen.add(tensor.data_ptr())
            tensors[name] = tensor.detach().cpu().contiguous()
    save_file(tensors, beside, metadata={"classes": json.dumps(list(classes)), "format": "pt"})
    beside.replace(path)


def load(run: str | Path, module: nn.Module | None = None) -> nn.Module:
    """The final model of a run directory in evaluation mode, on the CPU; `.classes` are its class names.

    It takes normalised images, as the run's `data.mean` and `data.std` say. A run of `fedmuon.federate` needs `module`,
    the user's own, whose weights are replaced. Raises UsageError for a folder without a final model.
    """
    run = Path(run)
    file = run / "model.safetensors"
    if not file.is_file():
        raise UsageError(f"{run}: has no model.safetensors; it is written when a run ends; go on with resume={run}")
    try:
        with safe_open(file, framework="pt") as opened:
            classes = tuple(json.loads((opened.metadata() or {}).get("classes", "[]")))
        tensors = load_file(file)
    except (SafetensorError, OSError, ValueError) as error:
        raise UsageError(f"{file}: is damaged ({error}); evaluate another run") from error
    module = (
        _built(run, tensors, classes)
        if module is None
        else network_of(module)
        if isinstance(module, LightningModule)
        else module
    )
    missing, unexpected = module.load_state_dict(tensors, strict=False)
    tied = {id(p) for name, p in module.state_dict(keep_vars=True).items() if name in tensors}
    lost = [name for name in missing if id(module.state_dict(keep_vars=True)[name]) not in tied]
    if lost or unexpected:
        raise UsageError(
            f"{file}: does not fit the model (missing {lost}, unexpected {unexpected}); "
            "give the module it was made with"
        )
    module.classes = classes  # type: ignore[assignment]
    return module.eval()


def _built(run: Path, tensors: dict[str, torch.Tensor], classes: tuple[str, ...]) -> nn.Module:
    from fedmuon.build import image_task, load_data

    config = checked(stored(run))
    return network_of(image_task(config, load_data(config)))
