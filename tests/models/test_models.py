"""The repository's own networks: sizes, outputs, gradients, stacks of clients, and inputs that are too small."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.functional import cross_entropy

from fedmuon.errors import UsageError
from fedmuon.models import CNN, MLP, CNNPfl, LeNet5, ResNet18, ViT

MNIST, CIFAR, TINY_IMAGENET = (1, 28, 28), (3, 32, 32), (3, 64, 64)

Build = Callable[..., nn.Module]
SHALLOW = partial(ViT, depth=2)
MODELS: dict[str, Build] = {
    "mlp": MLP,
    "lenet5": LeNet5,
    "cnn": CNN,
    "cnn_pfl": CNNPfl,
    "vit": SHALLOW,
    "resnet18_bn": ResNet18,
    "resnet18_gn": partial(ResNet18, norm="gn"),
    "resnet18_published": partial(ResNet18, norm="published"),
}


def count(model: nn.Module, vectors: bool = False) -> int:
    return sum(p.numel() for p in model.parameters() if p.ndim < 2 or not vectors)


@pytest.mark.parametrize(
    ("model", "at_28", "at_32"),
    [
        (MLP, 199_210, 656_810),
        (LeNet5, 61_706, 83_126),
        (CNN, 104_426, 113_962),
        (CNNPfl, 1_199_882, 1_626_442),
        (ResNet18, 11_172_810, 11_173_962),
        (ViT, 2_684_554, 2_693_578),
    ],
)
def test_parameter_counts_are_those_of_the_docstring(model: type[nn.Module], at_28: int, at_32: int) -> None:
    assert (count(model(MNIST, 10)), count(model(CIFAR, 10))) == (at_28, at_32)
    assert f"{at_28:,} " in (model.__doc__ or "") and f"{at_32:,} " in (model.__doc__ or "")


@pytest.mark.parametrize("norm", ["bn", "gn", "published"])
def test_resnet18_has_the_published_size(norm: str) -> None:
    network = ResNet18(CIFAR, 100, norm=norm)
    assert (count(network), count(network, vectors=True)) == (11_220_132, 9_700)


def test_vit_has_the_published_size_and_twice_its_depth_the_usual_one() -> None:
    network = ViT(CIFAR, 100)
    assert (count(network), count(network, vectors=True)) == (2_710_948, 15_652)
    assert (network.cls_token.shape, network.pos_embed.shape) == ((1, 1, 192), (1, 65, 192))
    assert count(ViT(CIFAR, 100, depth=12)) == 5_380_132


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [MNIST, CIFAR, TINY_IMAGENET, (2, 12, 16), (1, 40, 20)])
def test_logits_have_the_right_shape_and_every_parameter_a_gradient(name: str, shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    network = MODELS[name](shape, 7)
    logits = network(torch.randn(2, *shape))
    assert logits.shape == (2, 7)
    cross_entropy(logits, torch.arange(2)).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


@pytest.mark.parametrize("name", ["mlp", "lenet5", "cnn", "cnn_pfl", "vit", "resnet18_gn"])
def test_a_sample_does_not_depend_on_its_batch(name: str) -> None:
    torch.manual_seed(0)
    network, x = MODELS[name](MNIST, 10).eval(), torch.randn(4, *MNIST)
    assert torch.allclose(network(x)[:1], network(x[:1]), atol=1e-5)
    assert not list(network.buffers())


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("resnet18_bn", "resnet18_gn")])  # slow ones
def test_gradients_of_a_stack_of_clients_are_those_of_each(name: str) -> None:
    """Under vmap and grad, with stacked buffers, as the stacked engine works; without dropout, to compare."""
    torch.manual_seed(0)
    shape = (1, 12, 12)
    clients = [MODELS[name](shape, 10).double() for _ in range(2)]
    for module in (m for client in clients for m in client.modules() if isinstance(m, nn.Dropout)):
        module.p = 0.0
    x, y = torch.randn(2, 3, *shape, dtype=torch.float64), torch.randint(10, (2, 3))
    parameters, buffers = stack_module_state(clients)  # type: ignore[arg-type]

    def loss(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(functional_call(clients[0], (p, b), (x,)), y)

    gradients = vmap(grad(loss), randomness="different")(parameters, buffers, x, y)
    for i, client in enumerate(clients):
        cross_entropy(client(x[i]), y[i]).backward()
        for key, p in client.named_parameters():
            assert p.grad is not None
            torch.testing.assert_close(gradients[key][i], p.grad, rtol=1e-9, atol=1e-12, msg=key)
        for key, buffer in client.named_buffers():  # the running statistics of BatchNorm
            torch.testing.assert_close(buffers[key][i], buffer)


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
    with pytest.raises(UsageError, match=r"model\.pool=maxx: must be one of .*did you mean 'max'"):
        LeNet5(MNIST, 10, pool="maxx")


def test_cnn_has_group_norms_of_the_asked_size() -> None:
    network = CNN(MNIST, 10, width=12, groups=4)
    norms = [m for m in network.modules() if isinstance(m, nn.GroupNorm)]
    assert [(m.num_groups, m.num_channels) for m in norms] == [(4, 12), (4, 24), (4, 48)]
    with pytest.raises(UsageError, match=r"model\.groups=8 does not divide model\.width=12"):
        CNN(MNIST, 10, width=12, groups=8)


def test_resnet18_normalises_as_asked() -> None:
    kinds = (nn.BatchNorm2d, nn.GroupNorm)
    for norm, kind in zip(("bn", "gn"), kinds, strict=True):
        assert {type(m) for m in ResNet18(CIFAR, 10, norm=norm).modules() if isinstance(m, kinds)} == {kind}
    stem, *blocks = (m for m in ResNet18(CIFAR, 10, norm="published").modules() if isinstance(m, kinds))
    assert isinstance(stem, nn.GroupNorm) and (stem.num_groups, stem.num_channels) == (2, 64)
    assert len(blocks) == 19 and all(isinstance(m, nn.BatchNorm2d) for m in blocks)
    four = next(m for m in ResNet18(CIFAR, 10, norm="gn", groups=4).modules() if isinstance(m, nn.GroupNorm))
    assert four.num_groups == 4
    with pytest.raises(UsageError, match=r"model\.norm=publish: must be one of .*did you mean 'published'"):
        ResNet18(CIFAR, 10, norm="publish")
    with pytest.raises(UsageError, match=r"model\.groups=3 does not divide 64"):
        ResNet18(CIFAR, 10, norm="gn", groups=3)


def test_resnet18_keeps_the_resolution_in_its_stem() -> None:
    network, sides = ResNet18(CIFAR, 10), []
    for layer in (network.maxpool, network.layer1, network.layer2, network.layer3, network.layer4):
        layer.register_forward_hook(lambda module, inputs, output: sides.append(output.shape[-1]))
    network(torch.zeros(2, *CIFAR))
    assert sides == [32, 32, 16, 8, 4]


def test_attention_is_that_of_pytorchs_module() -> None:
    torch.manual_seed(0)
    ours = ViT(MNIST, 10, width=12, depth=1).blocks[0].attn
    theirs = nn.MultiheadAttention(12, 3, batch_first=True)
    assert isinstance(theirs.in_proj_weight, Tensor)
    theirs.load_state_dict(
        {
            "in_proj_weight": ours.qkv.weight,
            "in_proj_bias": ours.qkv.bias,
            "out_proj.weight": ours.proj.weight,
            "out_proj.bias": ours.proj.bias,
        }
    )
    x = torch.randn(2, 5, 12)
    torch.testing.assert_close(ours(x), theirs(x, x, x, need_weights=False)[0])


def test_dropout_of_cnn_pfl_acts_in_training_only() -> None:
    torch.manual_seed(0)
    network, x = CNNPfl(MNIST, 10), torch.randn(2, *MNIST)
    assert [m.p for m in network.modules() if isinstance(m, nn.Dropout)] == [0.25, 0.5]
    assert not torch.equal(network(x), network(x))
    network.eval()
    assert torch.equal(network(x), network(x))


@pytest.mark.parametrize(("model", "smallest"), [(LeNet5, 12), (CNN, 8), (CNNPfl, 6), (ResNet18, 9)])
def test_the_smallest_image_works_and_a_smaller_one_is_refused(model: type[nn.Module], smallest: int) -> None:
    # One sample, in training mode: BatchNorm needs more than one value a channel.
    assert model((1, smallest, smallest), 3)(torch.zeros(1, 1, smallest, smallest)).shape == (1, 3)
    for shape in ((1, smallest - 1, 28), (1, 28, smallest - 1)):
        with pytest.raises(UsageError, match=rf"model=.*the smallest is {smallest} x {smallest}; use "):
            model(shape, 3)


def test_vit_refuses_what_does_not_divide() -> None:
    with pytest.raises(UsageError, match=r"model\.patch=4 does not divide images of 30 x 28: use .*\(1, 2\)"):
        ViT((1, 30, 28), 10)
    with pytest.raises(UsageError, match=r"model\.heads=5 does not divide model\.width=192"):
        ViT(MNIST, 10, heads=5)
