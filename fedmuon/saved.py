"""The final model of a run: a safetensors file that needs no training code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning import LightningModule
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fedmuon import rundir
from fedmuon.errors import UsageError
from fedmuon.resuming import check_run, stored
from fedmuon.tasks import ImageClassification
from fedmuon.typed import checked

if TYPE_CHECKING:
    from fedmuon.build import Parts


def network_of(task: LightningModule) -> nn.Module:
    """What is saved of a task: the network of the repository's own, a user's module as a whole."""
    return task.network if isinstance(task, ImageClassification) else task


def save(parts: Parts, path: Path) -> None:
    """Write the global model's weights atomically, tied ones once; class names and input shape go with them."""
    tensors, seen = {}, set()
    for name, tensor in network_of(parts.federation.task).state_dict().items():
        if not isinstance(tensor, Tensor):  # what else a module keeps (`get_extra_state`)
            continue
        if tensor.data_ptr() not in seen or not tensor.numel():
            seen.add(tensor.data_ptr())
            tensors[name] = tensor.detach().cpu().contiguous()
    facts = {"classes": parts.classes, "input_shape": parts.input_shape}
    metadata = {"format": "pt", **{key: json.dumps(fact) for key, fact in facts.items()}}
    with rundir.replacing(path) as beside:
        save_file(tensors, beside, metadata=metadata)
        _sort_metadata(beside)


def _sort_metadata(file: Path) -> None:
    """Equal models make equal files: safetensors writes its metadata in an order of the moment."""
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    if len(text) <= end - 8:  # else another version writes it another way: leave it
        file.write_bytes(content[:8] + text.ljust(end - 8) + content[end:])


def load(run: str | Path, module: nn.Module | None = None) -> nn.Module:
    """The final model of a run directory in evaluation mode, on the CPU; `.classes` are its class names.

    It takes normalised images, as the run's `data.mean` and `data.std` say. A run of `fedmuon.federate` needs `module`,
    the user's own, whose weights are replaced. Every tensor has the dtype it was saved in. Raises UsageError for a
    folder without a final model.
    """
    run = rundir.named("run", run)
    if module is not None and not isinstance(module, nn.Module):
        raise UsageError(f"module={module!r}: must be the module that the run was made with, or left away")
    tensors, facts = _read(run)
    if isinstance(module, LightningModule):
        module = network_of(module)
    network = _built(run, facts) if module is None else module
    _fill(network, tensors, run)
    network.classes = tuple(facts.get("classes", ()))  # type: ignore[assignment]
    return network.eval()


def restore(run: Path, task: LightningModule) -> None:
    """Put the final weights of a run into the module that it was made with, and change nothing else of it."""
    _fill(network_of(task), _read(run)[0], run)


def _read(run: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a run's final model, and what is said of it."""
    file = run / "model.safetensors"
    if not file.is_file():
        check_run(run)
        raise UsageError(f"{run}: has no model.safetensors; it is written when a run ends; go on with resume={run}")
    try:
        with safe_open(file, framework="pt") as opened:
            facts = {key: json.loads(value) for key, value in (opened.metadata() or {}).items() if key != "format"}
        return load_file(file), facts
    except (SafetensorError, OSError, ValueError) as error:
        raise UsageError(f"{file}: is damaged ({error}); evaluate another run") from error


def _built(run: Path, facts: dict[str, list[int]]) -> nn.Module:
    from fedmuon.build import image_task

    if stored(run).model._target_ == "fedmuon.federate":
        raise UsageError(
            f"{run}: is a run of fedmuon.federate; give the module it was made with, fedmuon.load(run, module)"
        )
    config = checked(stored(run), environment=False)
    if getattr(config.model, "pretrained", False):
        config = replace(config, model=replace(config.model, pretrained=False))  # its weights are about to be replaced
    return image_task(config, tuple(facts["input_shape"]), len(facts["classes"])).network


def _fill(network: nn.Module, tensors: dict[str, Tensor], run: Path) -> None:
    file = run / "model.safetensors"
    own = network.state_dict(keep_vars=True)
    for name, tensor in tensors.items():
        if name in own and own[name].dtype != tensor.dtype:
            own[name].data = own[name].data.to(tensor.dtype)  # in place: what is tied stays tied
    try:
        missing, unexpected = network.load_state_dict(tensors, strict=False)
    except RuntimeError as error:  # other shapes
        raise UsageError(f"{file}: does not fit the model ({error}); give the module it was made with") from error
    filled = {id(own[name]) for name in tensors if name in own}
    # tied weights are in the file once, and what is no tensor is not
    lost = [name for name in missing if isinstance(own[name], Tensor) and id(own[name]) not in filled]
    if lost or unexpected:
        raise UsageError(
            f"{file}: does not fit the model (missing {lost}, unexpected {unexpected}); "
            "give the module it was made with"
        )
