"""`fedmuon debug=engine`: the first round on every engine from the same start, and how far apart the results are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from rich import box
from rich.table import Table
from torch import Tensor

from fedmuon.client import Client, loss_in
from fedmuon.config import Engine
from fedmuon.console import console
from fedmuon.engines.engine import Assignment, Broadcast
from fedmuon.engines.running import Running
from fedmuon.federation import Federation
from fedmuon.hooks import step

_VANISHED = 1e-6  # of the largest gradient's root mean square


class CompareEngines(Callback):
    """Trains the first chunk's clients on each engine and prints the differences of their mean from `sequential`.

    A parameter whose gradient vanishes by an invariance of the model, such as the bias of keys or one before a norm,
    moves by rounding errors only, which a normalising rule makes as large as any step: it is marked, and the last line
    compares what the models make of a batch. Afterwards the round runs as it would have.
    """

    def __init__(self) -> None:
        self.done = False

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        assert isinstance(pl_module, Federation)
        work = [pl_module._assignment(client) for client in batch if client in pl_module.plan.steps]
        if self.done or not work:
            return
        self.done = True
        broadcast, client, screen = pl_module.broadcast, pl_module.client, console()
        vanished = without_gradient(client, work[0], broadcast)
        means: dict[str, dict[str, Tensor]] = {}
        for name in names(pl_module.device):
            engine = Running(replace(pl_module.engine_config, name=name), client)
            means[name] = _mean(engine, work, broadcast)
            for note in engine.notes:
                screen.print(f"{name}: {note}", highlight=False, soft_wrap=True)
        screen.print(table(means, vanished), highlight=False)
        losses = {name: _loss(client, work[0], broadcast, mean) for name, mean in means.items()}
        screen.print("loss on a batch of the first client:", highlight=False, end=" ")
        screen.print(", ".join(f"{name} {loss:.9g}" for name, loss in losses.items()), highlight=False)


def names(device: torch.device) -> list[str]:
    """The engines that run on a device, `sequential` first."""
    (options,) = (f.metadata["options"] for f in fields(Engine) if f.name == "name")
    return [name for name in options if name != "auto" and (name != "graph" or device.type == "cuda")]


def table(means: Mapping[str, Mapping[str, Tensor]], vanished: Sequence[str]) -> Table:
    """The largest difference of each parameter from the first engine's, absolute and relative to its norm."""
    first, *others = means
    rich = Table(box=box.SIMPLE_HEAD, title=f"Largest difference from {first} after one round")
    rich.add_column("parameter", no_wrap=True)
    for name in others:
        rich.add_column(f"{name}, absolute", justify="right")
        rich.add_column("of its norm", justify="right")
    rich.add_column("")
    for parameter, expected in means[first].items():
        cells = []
        for name in others:
            difference = means[name][parameter] - expected
            relative = float(difference.norm() / expected.norm()) if expected.any() else float(difference.norm())
            cells += [f"{float(difference.abs().max()):.1e}", f"{relative:.1e}"]
        rich.add_row(parameter, *cells, "gradient vanishes by an invariance" if parameter in vanished else "")
    return rich


def without_gradient(client: Client, one: Assignment, broadcast: Broadcast) -> list[str]:
    """Parameters whose gradient on a client's first batch is nothing but rounding."""
    client.restore(broadcast)
    gradients, _ = client.gradients(one, one.batches[0], 1)
    sizes = {name: float(g.double().square().mean().sqrt()) for name, g in gradients.items()}
    client.restore(broadcast)
    return [name for name, size in sizes.items() if size <= _VANISHED * max(sizes.values())]


def _mean(engine: Running, work: Sequence[Assignment], broadcast: Broadcast) -> dict[str, Tensor]:
    """The plain mean of the clients' parameters, in float64."""
    sums = {name: torch.zeros_like(x, dtype=torch.float64) for name, x in broadcast.states["x"].items()}
    with engine.cores():
        for message in engine.train(work, broadcast):
            for name, x in message.x.items():
                sums[name] += x
    return {name: total / len(work) for name, total in sums.items()}


@torch.no_grad()
def _loss(client: Client, one: Assignment, broadcast: Broadcast, mean: Mapping[str, Tensor]) -> float:
    client.restore(broadcast)
    for name, p in client.learned.items():
        p.copy_(mean[name])
    index, keys = torch.from_numpy(one.batches[0]).to(client.device)[None], client.keys(one, 1)
    client.key.set(keys[0])
    with client.computing(), client.single(index.shape[1]):
        loss = float(loss_in(step(client.task.training_step)(client.batch(index, keys, None), 0)))
    client.restore(broadcast)
    return loss
