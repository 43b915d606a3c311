"""Clients and rounds for the engines alone: no server, random broadcasts."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from lightning import LightningModule, Trainer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedmuon.client import Client
from fedmuon.compose import Composer
from fedmuon.data.augment import Augmentation, Normalize
from fedmuon.data.samples import Samples
from fedmuon.engines.engine import Assignment, Broadcast
from fedmuon.job import checked_job
from fedmuon.optim.routing import groups

MODELS = {
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 3)),
    "everything": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.Tanh(), nn.Dropout(0.3),
        nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(144, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 3),
    ),
}  # fmt: skip
SIZES = (9, 4, 13, 1, 6)  # samples of the clients
COHORTS = ((0, 1, 2, 4), (1, 2, 3, 0, 4), (2, 0), (4, 3, 1, 0), (0, 1, 2, 4))  # the second is larger than the first


class Task(LightningModule):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        logits = self.network(batch[0])
        self.log("correct", (logits.argmax(1) == batch[1]).float().mean())
        self.log("number", batch_idx)
        self.log("constant", 0.25)
        return cross_entropy(logits, batch[1])


def algorithm(name: str, **fields: Any) -> Any:
    return checked_job(Composer().compose([f"algorithm={name}", *(f"{k}={v}" for k, v in fields.items())])).config


def client_of(task: LightningModule, of: Any, clip: float | None = 0.5, device: str = "cpu") -> Client:
    """A client in float64 as a fit would leave it, with augmented data."""
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 256, (sum(SIZES), 1, 6, 6), dtype=np.uint8))
    labels = torch.from_numpy(rng.integers(0, 3, sum(SIZES)))
    normalize = Normalize((0.5,), (0.3,))
    samples = Samples((pixels, labels), normalize, Augmentation(normalize, crop=1, flip=True, cutout=2))
    client = Client(task.double().to(device), samples.to(torch.device(device)))
    trainer = Trainer(
        accelerator=device, precision="64-true", logger=False, enable_checkpointing=False, enable_model_summary=False
    )
    trainer.strategy.connect(client)
    client.trainer = trainer
    client.to(device)
    learned = {name: p for name, p in client.task.named_parameters() if p.requires_grad}
    client.prepare(of, groups(of, learned, 0.05), learned, dict(client.task.named_buffers()), clip, 4)
    return client


def rounds(client: Client, of: Any, shifted: bool = True) -> Any:
    """(assignments without kept states, broadcast) of each round: ragged clients, another cohort each time."""
    rng = np.random.default_rng(1)
    starts = np.cumsum([0, *SIZES])
    device = client.device
    for number, cohort in enumerate(COHORTS):
        work = []
        for c in cohort:
            own = rng.permutation(np.arange(starts[c], starts[c + 1]))
            batches = [own[i : i + 4] for i in range(0, len(own), 4)] * 2
            features = (0.1 * c, 15.0 * c) if shifted else ()
            work.append(Assignment(c, batches[: 4 + c % 2], own, seed=100 * number + c, features=features))

        def drawn(like: dict[str, Tensor], positive: bool) -> dict[str, Tensor]:
            made = {n: torch.from_numpy(np.asarray(0.3 * rng.standard_normal(t.shape))) for n, t in like.items()}
            return {n: (t.square() if positive else t).to(device) for n, t in made.items()}

        states = {s: drawn(client.learned, s in ("v", "vh", "v_mean")) for s in of.broadcast()}
        if "v_mean" in states:
            states["v_mean"] = {n: t.mean() for n, t in states["v_mean"].items()}
        buffers = {n: torch.zeros_like(b) + (n.endswith("var")) for n, b in client.buffers_by_name.items()}
        yield work, Broadcast(states, buffers, factor=0.5 + 0.1 * number, t=7 * number)


def trained(engine: Any, client: Client, of: Any, shifted: bool = True) -> list[SimpleNamespace]:
    """What every client sent in every round."""
    found, kept = [], {}
    for work, broadcast in rounds(client, of, shifted):
        for one in work:
            one.kept.update(kept.get(one.client, {}))
        with client.trainer.precision_plugin.train_step_context():  # as Lightning calls a federation's training_step
            for m in engine.train(work, broadcast):
                copied = {
                    key: {n: t.detach().clone().cpu() for n, t in tensors.items()}
                    for key, tensors in {"x": m.x, "buffers": m.buffers, **m.sent, **m.kept}.items()
                }
                found.append(SimpleNamespace(client=m.client, steps=m.steps, metrics=m.metrics, tensors=copied))
                kept[m.client] = {slot: {n: t.clone() for n, t in tensors.items()} for slot, tensors in m.kept.items()}
    return found
