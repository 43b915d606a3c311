"""Small networks for images; each is built from `input_shape` (channels, height, width) and `classes`."""

from fedmuon.models.cnn import CNN
from fedmuon.models.lenet5 import LeNet5
from fedmuon.models.mlp import MLP

__all__ = ["CNN", "MLP", "LeNet5"]
