"""A multilayer perceptron; its default is the "2NN" of the FedAvg paper (arXiv 1602.05629)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn


class MLP(nn.Module):
    """Linear layers of the widths `hidden` with ReLU between, on flattened images [B, c, h, w] -> logits [B, classes].

    199,210 parameters with the default widths for 1 x 28 x 28 and 10 classes; 656,810 for 3 x 32 x 32. Any input size
    will do, and without hidden layers it is logistic regression.
    """

    def __init__(self, input_shape: tuple[int, int, int], classes: int, hidden: Sequence[int] = (200, 200)) -> None:
        super().__init__()
        channels, height, width = input_shape
        *inner, last = pairwise([channels * height * width, *hidden, classes])
        layers: list[nn.Module] = [nn.Flatten()]
        for fan_in, fan_out in inner:
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(*last))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)
