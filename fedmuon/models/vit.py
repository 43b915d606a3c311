"""A vision transformer for small images (arXiv 2010.11929), with the parameter names and initialisation of timm's."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from fedmuon.errors import UsageError


class Attention(nn.Module):
    """Self-attention of [B, tokens, width] in `heads` heads; `qkv` is one weight [3 width, width]: q, k, v."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # each [B, heads, tokens, -1]
        # Spelled out: torch's fused attention has no rule for stacks of clients on a CPU and is no faster at 65 tokens.
        weights = ((q * q.shape[-1] ** -0.5) @ k.mT).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a two-layer perceptron, each after a LayerNorm and around a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads)
        self.mlp = nn.Sequential(
            OrderedDict(fc1=nn.Linear(width, 4 * width), act=nn.GELU(), fc2=nn.Linear(4 * width, width))
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Patches of `patch` x `patch` pixels and a class token, `depth` blocks of `width` features, a head on the token.

    Images [B, c, h, w] -> logits [B, classes]. The defaults are the network of FedMuon's experiments (arXiv
    2510.27403), half as deep as DeiT's ViT-Tiny: 2,684,554 parameters for 1 x 28 x 28 and 10 classes, 2,693,578 for
    3 x 32 x 32, 2,710,948 for 100 classes, then 15,652 of them in vectors (5,380,132 with depth 12).
    Raises UsageError when `patch` does not divide the sides of the image, or `heads` the width.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        classes: int,
        patch: int = 4,
        width: int = 192,
        depth: int = 6,
        heads: int = 3,
    ) -> None:
        super().__init__()
        channels, height, breadth = input_shape
        if height % patch or breadth % patch:
            raise UsageError(
                f"model.patch={patch} does not divide images of {height} x {breadth}: "
                f"use a common divisor of the sides ({', '.join(map(str, _common_divisors(height, breadth)))})"
            )
        if width % heads:
            raise UsageError(f"model.heads={heads} does not divide model.width={width}: use a divisor, such as 1")
        tokens = (height // patch) * (breadth // patch) + 1
        self.patch_embed = nn.Sequential(OrderedDict(proj=nn.Conv2d(channels, width, patch, stride=patch)))
        self.cls_token = nn.Parameter(torch.empty(1, 1, width))
        self.pos_embed = nn.Parameter(torch.empty(1, tokens, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)
        self._initialise()

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x).flatten(2).mT  # [B, patches, width]
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])

    def _initialise(self) -> None:
        nn.init.normal_(self.cls_token, std=1e-6)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)


def _common_divisors(height: int, breadth: int) -> list[int]:
    return [d for d in range(1, min(height, breadth) + 1) if height % d == 0 and breadth % d == 0]
