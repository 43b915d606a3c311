"""Any image model of timm by its name (https://github.com/huggingface/pytorch-image-models)."""

from __future__ import annotations

from difflib import get_close_matches
from types import ModuleType
from typing import Any

import torch
from torch import nn

from fedmuon.errors import UsageError


def from_timm(
    input_shape: tuple[int, int, int], classes: int, arch: str = "resnet18", pretrained: bool = False
) -> nn.Module:
    """timm's `arch` for images [B, c, h, w] -> logits [B, classes]; the image size is set where it has one.

    pretrained  start from the published weights, which timm downloads once; the head and what depends on the input's
                shape are adapted. Such weights expect images normalised as timm's documentation of them says.
    Raises UsageError when timm is not installed, for a name it does not know, images that the architecture cannot take,
    and weights that do not exist or cannot be downloaded.
    """
    timm = _timm()
    _check_name(timm, arch)
    shape = " x ".join(map(str, input_shape))
    try:
        network = _created(timm, arch, input_shape, num_classes=classes)
        logits = _logits(network, input_shape)
        if logits != (1, classes):
            raise ValueError(f"its output has shape {list(logits)} where [1, {classes}] is needed")
    except Exception as error:
        raise UsageError(
            f"model.arch={arch}: cannot take images of {shape} ({_first_line(error)}); "
            "use images of another size, or an architecture for small ones such as model=resnet18"
        ) from error
    if not pretrained:
        return network
    try:  # only now, so that no download is wasted on what cannot work
        return _created(timm, arch, input_shape, num_classes=classes, pretrained=True)
    except Exception as error:
        raise UsageError(
            f"model.pretrained=true: no weights of {arch} ({_first_line(error)}); run once with a network, "
            "which keeps them in the cache of the Hugging Face hub, name weights that exist as model.arch=NAME.TAG "
            "(timm.list_pretrained()), or use model.pretrained=false"
        ) from error


def _timm() -> ModuleType:
    try:
        import timm
    except ImportError as error:
        raise UsageError(
            f"model=timm: timm cannot be imported ({error}); run: pip install 'fedmuon[models]'"
        ) from error
    return timm


def _check_name(timm: ModuleType, arch: str) -> None:
    """Raise UsageError for a NAME, or a NAME.TAG of published weights, that timm does not know."""
    name, _, tag = arch.partition(".")
    tagged = timm.list_pretrained(f"{name}.*") if tag else []
    if arch in tagged or (not tag and timm.is_model(name)):
        return
    close = ", ".join(get_close_matches(arch, tagged or timm.list_models(), n=4, cutoff=0.4))
    advice = f"the nearest names are {close}" if close else "timm.list_models() has the names"
    raise UsageError(f"model.arch={arch}: timm {timm.__version__} has no such model; {advice}")


def _created(timm: ModuleType, arch: str, input_shape: tuple[int, int, int], **arguments: Any) -> nn.Module:
    """The model with its input adapted. Convolutional architectures take any size and refuse to be told one."""
    channels, height, width = input_shape
    try:
        return timm.create_model(arch, in_chans=channels, img_size=(height, width), **arguments)
    except TypeError as error:
        if "img_size" not in str(error):
            raise
        return timm.create_model(arch, in_chans=channels, **arguments)


@torch.no_grad()
def _logits(network: nn.Module, input_shape: tuple[int, int, int]) -> tuple[int, ...]:
    """The shape of the output for one blank image; the network is left in training mode."""
    shape = tuple(network.eval()(torch.zeros(1, *input_shape)).shape)
    network.train()
    return shape


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__
