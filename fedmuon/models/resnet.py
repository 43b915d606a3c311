"""ResNet-18 for small images: torchvision's, with a stem that keeps the resolution (arXiv 1512.03385)."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, ResNet

from fedmuon.config import ResNet18 as Options
from fedmuon.constraints import check_fields
from fedmuon.errors import UsageError

_STEM = 64  # channels
_SMALLEST = 9  # three halvings leave 2 x 2, so that BatchNorm can take a batch of one sample


class ResNet18(ResNet):
    """ResNet-18 with a 3x3 stem of stride 1 and no pooling after it; images [B, c, h, w] -> logits [B, classes].

    norm  bn: BatchNorm;  gn: GroupNorm in `groups` groups, nothing but weights to average;  published: GroupNorm(2, 64)
          after the stem and BatchNorm in the blocks, as in the authors' code of FedMuon (arXiv 2510.27403)
    11,172,810 parameters for 1 x 28 x 28 and 10 classes, 11,173,962 for 3 x 32 x 32, 11,220,132 for 100 classes: the
    same for every norm. Names and initialisation are torchvision's; `bn1` is the stem's norm, whatever its kind.
    Raises UsageError for images smaller than 9 x 9, an unknown norm, and `groups` that do not divide 64.
    """

    def __init__(self, input_shape: tuple[int, int, int], classes: int, norm: str = "bn", groups: int = 2) -> None:
        channels, height, width = input_shape
        if min(height, width) < _SMALLEST:
            raise UsageError(
                f"model=resnet18 cannot take images of {height} x {width}: the smallest is {_SMALLEST} x {_SMALLEST}; "
                "use larger images, model=cnn (from 8 x 8) or model=mlp (any size)"
            )
        check_fields(Options, "model.", norm=norm, groups=groups)
        if norm == "gn" and _STEM % groups:
            raise UsageError(f"model.groups={groups} does not divide {_STEM}, the channels of the stem: use a divisor")
        layer = partial(nn.GroupNorm, groups) if norm == "gn" else nn.BatchNorm2d
        super().__init__(BasicBlock, [2, 2, 2, 2], num_classes=classes, norm_layer=layer)
        self.conv1 = nn.Conv2d(channels, _STEM, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(self.conv1.weight, mode="fan_out", nonlinearity="relu")
        self.maxpool = nn.Identity()
        if norm == "published":
            self.bn1 = nn.GroupNorm(2, _STEM)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = super().forward(x)
        return logits
