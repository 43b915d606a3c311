"""Rounds of a small federation on one engine, without Lightning's loop: server, client and engine as a run has them."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from lightning.pytorch.plugins.precision import DoublePrecision, Precision
from torch import Tensor, nn

from fedmuon.client import Client
from fedmuon.compose import Composer
from fedmuon.config import Aggregation, Engine
from fedmuon.data.batching import batches
from fedmuon.data.samples import Samples
from fedmuon.engines.engine import Assignment, Tensors
from fedmuon.engines.running import Running
from fedmuon.job import checked_job
from fedmuon.models import CNN, MLP, CNNPfl, LeNet5, ResNet18, ViT
from fedmuon.optim.routing import groups
from fedmuon.server import Server
from fedmuon.tasks import ImageClassification

SIZES = (9, 4, 13, 1, 6)  # samples of the clients: unequal steps, short batches, a batch of one sample
CLASSES, BATCH, EPOCHS, LR = 3, 4, 1.5, 0.05
# By name: channels, side of the images, how the network is made.
MODELS: dict[str, Any] = {
    "mlp": (1, 6, lambda shape: MLP(shape, CLASSES, [8])),
    "smooth": (1, 6, lambda shape: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, CLASSES))),
    "twins": (1, 6, lambda shape: Twins()),
    "cnn": (2, 8, lambda shape: CNN(shape, CLASSES, width=4, groups=2)),
    "cnn_pfl": (2, 6, lambda shape: CNNPfl(shape, CLASSES)),
    "lenet5": (1, 12, lambda shape: LeNet5(shape, CLASSES)),
    "vit_tiny": (1, 8, lambda shape: _awake(ViT(shape, CLASSES, patch=4, width=6, depth=2, heads=2))),
    "batchnorm": (2, 6, lambda shape: _normalised(nn.BatchNorm2d(4))),
    "smooth_groupnorm": (2, 6, lambda shape: _normalised(nn.GroupNorm(2, 4))),
    "resnet18": (1, 9, lambda shape: ResNet18(shape, CLASSES)),
}
SMOOTH = ("smooth", "vit_tiny", "smooth_groupnorm")
# Entries whose gradient vanishes: softmax does not see what is added to all keys; they move by rounding alone.
INVARIANT = {"vit_tiny": {f"network.blocks.{block}.attn.qkv.bias": slice(6, 12) for block in range(2)}}


def _awake(network: nn.Module) -> nn.Module:
    """Larger weights: those a transformer starts from leave gradients of 1e-8, which AdamW makes steps of rounding."""
    with torch.no_grad():
        for p in network.parameters():
            if p.ndim >= 2:
                p.normal_(std=0.4)
    return network


def _normalised(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, bias=False), norm, nn.Tanh(), nn.Flatten(), nn.Linear(144, 3))


class Twins(nn.Module):
    """Two parameters whose gradient is one tensor of autograd: what is done to one must not be done to the other."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(36, CLASSES, bias=False)
        self.first, self.second = (nn.Parameter(torch.zeros(1, CLASSES)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1)) + (self.first + self.second)


@cache
def algorithm_of(name: str, dtype: torch.dtype = torch.float64) -> Any:
    """In float32 with the exact polar factor; in float64 with the iterations, which a small singular value, such as
    that of a transformer's keys, does not make as sensitive to rounding."""
    polar = "algorithm.polar.dtype=float64" if dtype == torch.float64 else "algorithm.polar.method=svd"
    has_polar = ("muon" in name and "pac" not in name) or name == "muloco"
    return checked_job(Composer().compose([f"algorithm={name}", *([polar] if has_polar else [])])).config.algorithm


class Rounds:
    """A federation whose global model is `x`; `run` trains rounds of all clients in chunks of `chunk`."""

    def __init__(
        self, model: str, algorithm: Any, dtype: torch.dtype, clip: float | None = None, **options: Any
    ) -> None:
        channels, side, build = MODELS[model]
        torch.manual_seed(0)
        self.task = ImageClassification(build((channels, side, side)), CLASSES).to(dtype)
        rng = np.random.default_rng(0)
        images = torch.from_numpy(rng.standard_normal((sum(SIZES), channels, side, side))).to(dtype)
        samples = Samples((images, torch.from_numpy(rng.integers(0, CLASSES, sum(SIZES)))))
        self.client = Client(self.task, samples)
        precision = DoublePrecision() if dtype == torch.float64 else Precision()
        self._trainer = SimpleNamespace(precision_plugin=precision, callbacks=[])  # held: modules refer to it weakly
        self.client.trainer = self._trainer  # type: ignore[assignment]
        self.client.alone = False
        parameters, buffers = dict(self.task.named_parameters()), dict(self.task.named_buffers())
        of_rules = groups(algorithm, parameters, LR)
        self.client.prepare(algorithm, of_rules, parameters, buffers, clip, BATCH)
        self.server = Server(algorithm, of_rules, parameters, buffers, Aggregation())
        self.engine = Running(Engine(**options), self.client)
        self.kept: dict[int, Any] = {}

    def run(self, rounds: int = 3, chunk: int | None = None, steps: int | None = None) -> Tensors:
        """The global model and buffers after so many rounds, copied."""
        for round in range(rounds):
            broadcast = self.server.start_round(1.0)
            work = [self._assignment(round, client, steps) for client in range(len(SIZES))]
            size = chunk or len(work)
            for start in range(0, len(work), size):
                for message in self.engine.train(work[start : start + size], broadcast):
                    self.server.add(message, SIZES[message.client] / sum(SIZES))
                    self.kept[message.client] = {
                        slot: {n: t.clone() for n, t in ts.items()} for slot, ts in message.kept.items()
                    }
            self.client.restore(broadcast)
            self.server.finish(1.0)
            with torch.no_grad():
                for p in self.client.learned.values():
                    p.sub_(p.grad)  # type: ignore[arg-type]
        return {name: t.clone() for name, t in self.task.state_dict().items()}

    def _assignment(self, round: int, client: int, steps: int | None) -> Assignment:
        start = sum(SIZES[:client])
        samples = np.arange(start, start + SIZES[client])
        made = batches(0, round, client, samples=samples, batch_size=BATCH, epochs=EPOCHS)
        return Assignment(client, made[:steps], samples, seed=100 * round + client, kept=self.kept.get(client, {}))

    def logits(self) -> Tensor:
        """Of all samples, by the global model in evaluation mode."""
        self.task.eval()
        with torch.no_grad():
            found = self.task(self.client.data.columns[0])
        self.task.train()
        return found


def differences(a: Tensors, b: Tensors, model: str) -> dict[str, float]:
    """The norm of each tensor's difference relative to its own, entries without gradient left out."""
    found = {}
    for name, one in a.items():
        left, right = one.double().clone(), b[name].double().clone()
        if name in INVARIANT.get(model, {}):
            for t in (left, right):
                t[INVARIANT[model][name]] = 0
        found[name] = float((left - right).norm() / left.norm().clamp(min=1e-30)) if left.any() or right.any() else 0.0
    return found
