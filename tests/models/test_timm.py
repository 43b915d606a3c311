"""Models of timm by name: adapted input and classes, and one line for what cannot work. No download anywhere."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from fedmuon.errors import UsageError
from fedmuon.models import ViT, from_timm

timm = pytest.importorskip("timm")


@pytest.mark.parametrize("arch", ["test_resnet", "vit_tiny_patch16_224", "mobilenetv3_small_050"])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 64, 32)])
def test_input_and_classes_are_adapted(arch: str, shape: tuple[int, int, int]) -> None:
    network = from_timm(shape, 7, arch=arch)
    assert network.training
    assert network(torch.zeros(2, *shape)).shape == (2, 7)


def test_our_vit_is_timms() -> None:
    torch.manual_seed(0)
    ours = ViT((3, 32, 32), 10, depth=2).eval()
    theirs = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=4, depth=2, num_classes=10, in_chans=3
    ).eval()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)
    for name, p in timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=4, depth=2).named_parameters():
        if p.ndim > 1 and not name.startswith("head"):  # the same start, up to chance
            torch.testing.assert_close(ours.state_dict()[name].std(), p.std(), rtol=0.15, atol=1e-9)


@pytest.mark.parametrize(
    "arch, line",
    [
        ("resnet81", r"model\.arch=resnet81: timm .* has no such model; the nearest names are .*resnet18"),
        ("resnet18.a1_in2k", r"has no such model; the nearest names are .*resnet18\.a1_in1k"),
        ("%", r"has no such model; timm\.list_models\(\) has the names"),
    ],
)
def test_unknown_names_come_with_the_nearest(arch: str, line: str) -> None:
    with pytest.raises(UsageError, match=line):
        from_timm((3, 32, 32), 10, arch=arch)


@pytest.mark.parametrize("arch, side", [("vit_tiny_patch16_224", 12), ("test_vit", 40)])
def test_images_of_a_size_that_cannot_be_are_refused(arch: str, side: int) -> None:
    line = rf"model\.arch={arch}: cannot take images of 1 x {side} x {side} \(.+\); use images of another size"
    with pytest.raises(UsageError, match=line):
        from_timm((1, side, side), 10, arch=arch)


def test_weights_that_cannot_be_fetched_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    create = timm.create_model

    def without_network(arch: str, pretrained: bool = False, **arguments: Any) -> Any:
        if pretrained:
            raise OSError("cannot reach the hub\nand a second line")
        return create(arch, **arguments)

    monkeypatch.setattr(timm, "create_model", without_network)
    line = r"^model\.pretrained=true: no weights of test_vit \(cannot reach the hub\); .* use model\.pretrained=false$"
    with pytest.raises(UsageError, match=line):
        from_timm((3, 32, 32), 10, arch="test_vit", pretrained=True)


def test_weights_are_loaded_into_the_adapted_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """From a file in the place of the hub: `pretrained_cfg_overlay` is timm's own way to name one."""
    stored = timm.create_model("test_resnet", num_classes=10).state_dict()  # the head of 1,000 classes is replaced
    torch.save(stored | {"fc.weight": torch.ones(1000, stored["fc.weight"].shape[1])}, tmp_path / "weights.pth")
    create = timm.create_model
    overlay = {"file": str(tmp_path / "weights.pth"), "hf_hub_id": None, "url": ""}
    monkeypatch.setattr(
        timm, "create_model", lambda arch, **given: create(arch, pretrained_cfg_overlay=overlay, **given)
    )
    found = from_timm((3, 32, 32), 10, arch="test_resnet", pretrained=True).state_dict()
    assert {name for name in stored if not torch.equal(stored[name], found[name])} <= {"fc.weight", "fc.bias"}
    assert found["fc.weight"].shape == stored["fc.weight"].shape and not (found["fc.weight"] == 1).any()


def test_without_timm_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UsageError, match=r"model=timm: .*pip install 'fedmuon\[models\]'"):
        from_timm((3, 32, 32), 10)
