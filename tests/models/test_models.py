"""The repository's own small networks: sizes, outputs, gradients, and inputs that are too small."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedmuon.errors import UsageError
from fedmuon.models.cnn import CNN
from fedmuon.models.lenet5 import LeNet5
from fedmuon.models.mlp import MLP

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("model", "at_28", "at_32"),
    [(MLP, 199_210, 656_810), (LeNet5, 61_706, 83_126), (CNN, 104_426, 113_962)],
)
def test_parameter_counts_are_those_of_the_docstring(model: type[nn.Module], at_28: int, at_32: int) -> None:
    assert (count(model(MNIST, 10)), count(model(CIFAR, 10))) == (at_28, at_32)
    assert f"{at_28:,} " in (model.__doc__ or "") and f"{at_32:,} " in (model.__doc__ or "")


@pytest.mark.parametrize("model", [MLP, LeNet5, CNN])
@pytest.mark.parametrize("shape", [MNIST, CIFAR, (2, 12, 17), (1, 40, 13)])
def test_logits_have_the_right_shape_and_every_parameter_a_gradient(
    model: type[nn.Module], shape: tuple[int, int, int]
) -> None:
    torch.manual_seed(0)
    network = model(shape, 7)
    logits = network(torch.randn(5, *shape))
    assert logits.shape == (5, 7)
    nn.functional.cross_entropy(logits, torch.arange(5)).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


@pytest.mark.parametrize("model", [MLP, LeNet5, CNN])
def test_a_sample_does_not_depend_on_its_batch(model: type[nn.Module]) -> None:
    torch.manual_seed(0)
    network, x = model(MNIST, 10), torch.randn(4, *MNIST)
    assert torch.allclose(network(x)[:1], network(x[:1]), atol=1e-5)
    assert not list(network.buffers())


def test_mlp_without_hidden_layers_is_a_linear_map() -> None:
    network, x = MLP((1, 2, 3), 4, hidden=()), torch.randn(2, 1, 2, 3)
    linear = network.layers[-1]
    assert isinstance(linear, nn.Linear)
    assert count(network) == 6 * 4 + 4
    assert torch.allclose(network(x), x.flatten(1) @ linear.weight.T + linear.bias, atol=1e-6)


def test_lenet5_pools_by_maximum_or_average() -> None:
    outputs = []
    for pool in ("max", "avg"):
        torch.manual_seed(0)
        outputs.append(LeNet5(MNIST, 10, pool=pool)(torch.ones(1, *MNIST)))
    assert not torch.allclose(*outputs)
    with pytest.raises(UsageError, match=r"model\.pool=maxx .*did you mean 'max'"):
        LeNet5(MNIST, 10, pool="maxx")


def test_cnn_has_group_norms_of_the_asked_size() -> None:
    network = CNN(MNIST, 10, width=12, groups=4)
    norms = [m for m in network.modules() if isinstance(m, nn.GroupNorm)]
    assert [(m.num_groups, m.num_channels) for m in norms] == [(4, 12), (4, 24), (4, 48)]
    with pytest.raises(UsageError, match=r"model\.groups=8 does not divide model\.width=12"):
        CNN(MNIST, 10, width=12, groups=8)


@pytest.mark.parametrize(("model", "smallest"), [(LeNet5, 12), (CNN, 8)])
def test_the_smallest_image_works_and_a_smaller_one_is_refused(model: type[nn.Module], smallest: int) -> None:
    assert model((1, smallest, smallest), 3)(torch.zeros(2, 1, smallest, smallest)).shape == (2, 3)
    for shape in ((1, smallest - 1, 28), (1, 28, smallest - 1)):
        with pytest.raises(UsageError, match=rf"model=.*the smallest is {smallest} x {smallest}; use "):
            model(shape, 3)
