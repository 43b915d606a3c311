"""Choosing an engine, and going on with less when it turns out to ask too much of the task or the memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from fedmuon.client import Client
from fedmuon.engines.engine import Assignment, Broadcast, Engine, Message
from fedmuon.engines.graph import Graph
from fedmuon.engines.sequential import Sequential
from fedmuon.engines.stacked import Stacked
from fedmuon.engines.ways import Unsupported


class Running:
    """The engine of a run. Its choices are part of the run's state: a resumed run keeps them.

    name   sequential, stacked, graph, or auto: graph on an NVIDIA GPU, stacked on others, and on a CPU for models
           without convolutions (whose grouped kernels are slower there than one client after the other)
    notes  what was decided on the way, for people; whoever shows them empties the list
    """

    def __init__(self, name: str, client: Client) -> None:
        self.client, self.largest = client, 0
        self.notes: list[str] = []
        if name == "auto":
            convolutions = any(isinstance(m, nn.modules.conv._ConvNd) for m in client.task.modules())
            name = {"cuda": "graph", "cpu": "sequential" if convolutions else "stacked"}.get(
                client.device.type, "stacked"
            )
            why = f"{client.device.type}, {'with' if convolutions else 'without'} convolutions"
            self.notes.append(f"engine=auto: {name} ({why})")
        self._use(name)

    def _use(self, name: str, way: str | None = None) -> None:
        self.name = name
        self.engine: Engine
        if name == "graph":
            self.engine = Graph(self.client, lambda note: self.notes.append(note), way)
        else:
            self.engine = Stacked(self.client) if name == "stacked" else Sequential(self.client)

    @property
    def way(self) -> str | None:
        """How the graph engine computes gradients, once it has measured."""
        return self.engine.way if isinstance(self.engine, Graph) else None

    def train(self, work: Sequence[Assignment], broadcast: Broadcast) -> Iterator[Message]:
        """The messages of all clients in the order of `work`, whatever has to be changed for it."""
        if self.largest and len(work) > self.largest:
            for start in range(0, len(work), self.largest):
                yield from self.train(work[start : start + self.largest], broadcast)
            return
        try:
            yield from self.engine.train(work, broadcast)  # an engine that fails has not sent a message yet
            return
        except Unsupported as reason:
            name, what = ("stacked", "be captured") if self.name == "graph" else ("sequential", "run as a stack")
            self.notes.append(f"engine={name} from here on: the task cannot {what}, {reason}")
            self._use(name)
        except (torch.OutOfMemoryError, MemoryError):
            if len(work) == 1 or self.name == "sequential":
                raise
            self.largest = len(work) // 2
            self.notes.append(f"out of memory with {len(work)} clients at once: {self.largest} from here on")
            self._use(self.name, self.way)
            torch.cuda.empty_cache()
        yield from self.train(work, broadcast)

    def checkpoint(self) -> dict[str, Any]:
        return {"name": self.name, "largest": self.largest, "way": self.way}

    def restore(self, saved: dict[str, Any]) -> None:
        self.largest = saved["largest"]
        name, way = saved["name"], saved.get("way")
        if name == "graph" and self.client.device.type != "cuda":
            self.notes.append(f"engine=stacked from here on: no graphs on {self.client.device.type}")
            name, way = "stacked", None
        if name != self.name or way != self.way:
            self._use(name, way)
