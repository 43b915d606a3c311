"""LeNet-5 with ReLU, for small images of any number of channels."""

from __future__ import annotations

from torch import Tensor, nn

from fedmuon.config import LeNet5 as Options
from fedmuon.constraints import check_fields
from fedmuon.errors import UsageError

_POOLS: dict[str, type[nn.Module]] = {"max": nn.MaxPool2d, "avg": nn.AvgPool2d}
_SMALLEST = 12  # 12 -> pool 6 -> convolution 2 -> pool 1


class LeNet5(nn.Module):
    """Two 5x5 convolutions (6 and 16 channels), each with a 2x2 `pool` ("max" or "avg"), then 120, 84, `classes` units.

    Images [B, c, h, w] -> logits [B, classes]. The first convolution is padded by 2, so 28 x 28 gives the 400 features
    of the original: 61,706 parameters for 1 x 28 x 28 and 10 classes; 83,126 for 3 x 32 x 32.
    Raises UsageError for images smaller than 12 x 12 and for an unknown pool.
    """

    def __init__(self, input_shape: tuple[int, int, int], classes: int, pool: str = "max") -> None:
        super().__init__()
        channels, height, width = input_shape
        if min(height, width) < _SMALLEST:
            raise UsageError(
                f"model=lenet5 cannot take images of {height} x {width}: the smallest is {_SMALLEST} x {_SMALLEST}; "
                "use larger images, model=cnn (from 8 x 8) or model=mlp (any size)"
            )
        check_fields(Options, "model.", pool=pool)
        self.features = nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(), _POOLS[pool](2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), _POOLS[pool](2),
        )  # fmt: skip
        side_h, side_w = ((side // 2 - 4) // 2 for side in (height, width))
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(16 * side_h * side_w, 120), nn.ReLU(),
            nn.Linear(120, 84), nn.ReLU(),
            nn.Linear(84, classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))
