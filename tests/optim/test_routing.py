"""Which parameter goes where, and what the printed table says of it."""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from torch import nn

from fedmuon.algorithms import SGD, AdamW, FedMuonLMO, Muon
from fedmuon.models import ResNet18, ViT
from fedmuon.optim.routing import describe, groups, matches, matrix_view, table, totals
from fedmuon.tasks import ImageClassification


def routed(module: nn.Module, algorithm: Any = None) -> dict[str, tuple[str, str]]:
    """name -> (rule, matrix)"""
    rows = table(algorithm or Muon(), dict(module.named_parameters()), lr=0.1)
    return {row["parameter"]: (row["rule"], row["matrix"]) for row in rows}


def printed(rows: list[dict[str, Any]], **options: Any) -> list[str]:
    """The lines, with single spaces."""
    console = Console(width=200, file=StringIO())
    console.print(describe(rows, **options))
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "shape, fused, view",
    [
        ((5, 3), False, (5, 3)),
        ((64, 3, 3, 3), False, (64, 27)),
        ((64, 1, 5, 5), False, (64, 25)),  # depthwise: one filter a row
        ((4, 2, 3, 3, 3), False, (4, 54)),
        ((1, 65, 192), False, (1, 65, 192)),
        ((1, 1, 192), True, (1, 1, 192)),
        ((576, 192), False, (576, 192)),
        ((576, 192), True, (3, 192, 192)),
        ((576, 192, 1, 1), True, (3, 192, 192)),
        ((384, 192), True, (384, 192)),  # queries of another width: no three equal parts
    ],
)
def test_matrix_view(shape: tuple[int, ...], fused: bool, view: tuple[int, ...]) -> None:
    assert matrix_view(shape, fused) == view


def test_patterns_match_a_name_or_its_end_after_a_dot() -> None:
    assert matches("network.head.weight", ["head.*"]) and matches("head.weight", ["head.*"])
    assert matches("network.pos_embed", ["*embed*"]) and matches("a.b.weight", ["x", "b.weight"])
    assert not matches("network.ahead.weight", ["head.*"]) and not matches("head.weight", [])
    assert not matches("head.weight", ["head"])


def test_every_convolution_of_resnet18_takes_part() -> None:
    ways = routed(ResNet18((3, 32, 32), 100))
    matrices = {name: matrix for name, (rule, matrix) in ways.items() if rule == "Muon"}
    assert len(ways) == 62 and len(matrices) == 21  # 17 convolutions of 3 x 3, 3 shortcuts, the head
    assert sum(a * b for a, b in (map(int, m.split(" x ")) for m in matrices.values())) == 11_220_132 - 9_700
    assert matrices["conv1.weight"] == "64 x 27" and matrices["layer4.1.conv2.weight"] == "512 x 4608"
    assert all(way == ("AdamW", "-") for name, way in ways.items() if "bn" in name or name.endswith("bias"))


def test_vit_with_fused_and_with_split_qkv() -> None:
    task = ImageClassification(ViT((3, 32, 32), 100), 100)
    ways, split = routed(task), routed(task, Muon(split_qkv=True))
    assert ways["network.cls_token"] == ("Muon", "1 x 1 x 192")
    assert ways["network.pos_embed"] == ("Muon", "1 x 65 x 192")
    assert ways["network.patch_embed.proj.weight"] == ("Muon", "192 x 48")
    assert ways["network.blocks.5.attn.qkv.weight"] == ("Muon", "576 x 192")
    changed = {name for name in ways if ways[name] != split[name]}
    assert changed == {f"network.blocks.{i}.attn.qkv.weight" for i in range(6)}
    assert all(split[name] == ("Muon", "3 x 192 x 192") for name in changed)


def test_qkv_by_the_names_of_pytorch_and_by_own_patterns() -> None:
    attention = nn.MultiheadAttention(8, 2)
    assert routed(attention, Muon(split_qkv=True))["in_proj_weight"] == ("Muon", "3 x 8 x 8")
    ours = nn.ModuleDict({"c_attn": nn.Linear(8, 24), "qkv": nn.Linear(8, 24), "narrow": nn.Linear(8, 16)})
    ways = routed(ours, Muon(split_qkv=True, qkv=["c_attn.*", "narrow.*"]))
    assert ways["c_attn.weight"] == ("Muon", "3 x 8 x 8") and ways["c_attn.bias"] == ("AdamW", "-")
    assert ways["qkv.weight"] == ("Muon", "24 x 8") and ways["narrow.weight"] == ("Muon", "16 x 8")


def test_excluded_names_go_to_adamw_and_are_seen_as_no_matrix() -> None:
    task = ImageClassification(ViT((3, 32, 32), 100), 100)
    ways = routed(task, Muon(exclude=["head.*", "*embed", "cls_token"]))
    excluded = {name.removeprefix("network.") for name, (rule, _) in ways.items() if rule == "AdamW" and "." in name}
    assert {"head.weight", "pos_embed", "cls_token"} <= excluded and "patch_embed.proj.weight" not in excluded
    assert ways["network.head.weight"] == ("AdamW", "-")


def test_the_other_fedmuon_sees_the_same_matrices() -> None:
    network = ResNet18((3, 32, 32), 100)
    ways, other = routed(network), routed(network, FedMuonLMO())
    assert {name: matrix for name, (_, matrix) in other.items()} == {name: matrix for name, (_, matrix) in ways.items()}
    assert {rule for rule, _ in other.values()} == {"FedMuonLMO"}


def test_tied_weights_appear_once() -> None:
    embedding, inner, head = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 7, bias=False)
    head.weight = embedding.weight
    tied = nn.ModuleDict({"embedding": embedding, "inner": inner, "head": head})
    assert routed(tied) == {
        "embedding.weight": ("Muon", "7 x 4"), "inner.weight": ("Muon", "4 x 4"), "inner.bias": ("AdamW", "-"),
    }  # fmt: skip


def test_groups_follow_the_table() -> None:
    algorithm = Muon(lr_scale=0.5, adamw=AdamW(lr=0.01))
    parameters = dict(ViT((1, 28, 28), 10, depth=1).named_parameters())
    rows = table(algorithm, parameters, lr=0.2)
    for group in groups(algorithm, parameters, lr=0.2):
        own = [row for row in rows if row["rule"] == type(group.rule).__name__]
        assert tuple(row["parameter"] for row in own) == group.names
        assert {row["lr"] for row in own} == {group.lr} == {0.1 if group.rule is algorithm else 0.01}


def test_a_rule_without_matrices_shows_none() -> None:
    assert set(routed(nn.Linear(3, 2), SGD()).values()) == {("SGD", "-")}


def test_print_groups_what_is_alike_and_counts() -> None:
    rows = table(Muon(adamw=AdamW(lr=0.001)), dict(ResNet18((3, 32, 32), 100, norm="gn").named_parameters()), lr=0.02)
    lines = printed(rows)
    assert lines[0] == "rule rate matrix tensors elements parameters"
    assert "Muon 0.02 64 x 576 4 147,456 layer*.*.conv*.weight" in lines
    assert "Muon 0.02 100 x 512 1 51,200 fc.weight" in lines
    assert "AdamW 0.001 - 41 9,700 bn*.weight, bn*.bias, layer*.*.bn*.weight and 4 more" in lines
    assert len(lines) == 14  # 13 kinds of parameters
    assert totals(rows) == "Muon: 21 tensors, 11,210,432 elements (99.9%); AdamW: 41 tensors, 9,700 elements (0.1%)"

    short = printed(rows, most=2)
    assert short[:3] == lines[:3] and len(short) == 4
    assert short[3] == "... 20 11,208,704 more, all of them in routing.json"


def test_scalars_have_one_element() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(nn.Linear(1, 1).bias.detach()[0])

    rows = table(Muon(), dict(Scaled().named_parameters()), lr=0.1)
    assert rows == [{"parameter": "scale", "shape": "scalar", "matrix": "-", "rule": "AdamW", "lr": 0.01}]
    assert totals(rows) == "AdamW: 1 tensors, 1 elements (100.0%)"


def test_describing_needs_no_torch() -> None:
    code = (
        "import sys; from fedmuon.optim.routing import describe;"
        "describe([{'parameter': 'a', 'shape': '2 x 3', 'matrix': '2 x 3', 'rule': 'Muon', 'lr': 0.1}]);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
