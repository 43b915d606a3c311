"""Networks for images; each is built from `input_shape` (channels, height, width) and the number of `classes`."""

from fedmuon.models.cnn import CNN
from fedmuon.models.cnn_pfl import CNNPfl
from fedmuon.models.lenet5 import LeNet5
from fedmuon.models.mlp import MLP
from fedmuon.models.resnet import ResNet18
from fedmuon.models.timm_model import from_timm
from fedmuon.models.vit import ViT

__all__ = ["CNN", "MLP", "CNNPfl", "LeNet5", "ResNet18", "ViT", "from_timm"]
