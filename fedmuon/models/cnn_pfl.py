"""The two-convolution network of the benchmarks of pfl-research (arXiv 2404.06430), to compare speed with it."""

from __future__ import annotations

from torch import Tensor, nn

from fedmuon.errors import UsageError

_SMALLEST = 6  # two 3x3 convolutions without padding leave 2 x 2 for the pooling


class CNNPfl(nn.Module):
    """3x3 convolutions of 32 and 64 channels, 2x2 max pooling, 128 units, `classes` units; ReLU between.

    Images [B, c, h, w] -> logits [B, classes]; `conv_dropout` after the pooling and `dense_dropout` before the head.
    1,199,882 parameters for 1 x 28 x 28 and 10 classes; 1,626,442 for 3 x 32 x 32. Weights start uniform after Glorot.
    Raises UsageError for images smaller than 6 x 6.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        classes: int,
        conv_dropout: float = 0.25,
        dense_dropout: float = 0.5,
    ) -> None:
        super().__init__()
        channels, height, width = input_shape
        if min(height, width) < _SMALLEST:
            raise UsageError(
                f"model=cnn_pfl cannot take images of {height} x {width}: the smallest is {_SMALLEST} x {_SMALLEST}; "
                "use larger images or model=mlp (any size)"
            )
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, 3), nn.ReLU(),
            nn.Conv2d(32, 64, 3), nn.ReLU(),
            nn.MaxPool2d(2), nn.Dropout(conv_dropout),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128), nn.ReLU(),
            nn.Dropout(dense_dropout),
            nn.Linear(128, classes),
        )  # fmt: skip
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x))
        return logits
