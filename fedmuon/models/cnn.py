"""A small convolutional network without batch statistics: nothing but weights to average."""

from __future__ import annotations

from torch import Tensor, nn

from fedmuon.config import CNN as Options
from fedmuon.constraints import check_fields
from fedmuon.errors import UsageError

_BLOCKS = 3
_SMALLEST = 2**_BLOCKS  # every block halves the image


class CNN(nn.Module):
    """Three blocks of 3x3 convolution, GroupNorm, ReLU and 2x2 max pooling, and a linear head.

    Images [B, c, h, w] -> logits [B, classes]; the blocks have `width`, 2 `width` and 4 `width` channels, each
    normalised in `groups` groups. 104,426 parameters for 1 x 28 x 28 and 10 classes; 113,962 for 3 x 32 x 32.
    Raises UsageError for images smaller than 8 x 8 and when `groups` does not divide `width`.
    """

    def __init__(self, input_shape: tuple[int, int, int], classes: int, width: int = 32, groups: int = 8) -> None:
        super().__init__()
        channels, height, breadth = input_shape
        if min(height, breadth) < _SMALLEST:
            raise UsageError(
                f"model=cnn cannot take images of {height} x {breadth}: the smallest is {_SMALLEST} x {_SMALLEST}; "
                "use larger images or model=mlp (any size)"
            )
        check_fields(Options, "model.", width=width, groups=groups)
        if width % groups:
            raise UsageError(f"model.groups={groups} does not divide model.width={width}: use a divisor, such as 1")
        blocks: list[nn.Module] = []
        for out in (width, 2 * width, 4 * width):
            # No bias: GroupNorm takes most of it away again and has one of its own.
            blocks += [nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.GroupNorm(groups, out)]
            blocks += [nn.ReLU(), nn.MaxPool2d(2)]
            channels = out
        self.features = nn.Sequential(*blocks)
        self.head = nn.Linear(channels * (height // _SMALLEST) * (breadth // _SMALLEST), classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))
