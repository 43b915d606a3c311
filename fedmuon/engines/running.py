"""Choosing an engine, and going on with less when it turns out to ask too much of the task or the memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import nn

from fedmuon.client import Client, watchers
from fedmuon.config import Engine as Options
from fedmuon.engines import memory
from fedmuon.engines.engine import Assignment, Broadcast, Engine, Message
from fedmuon.engines.graph import Graph
from fedmuon.engines.lanes import Alone, Lanes
from fedmuon.engines.sequential import Sequential
from fedmuon.engines.stacked import OneByOne, Stacked
from fedmuon.engines.trace import Traced
from fedmuon.engines.ways import Unsupported, reason
from fedmuon.tasks import ImageClassification

_SMALL = 2_000_000  # parameters: beyond, a client's operators are large enough to keep a core busy by themselves

_KNOWN = ("fedmuon.models.", "timm.models.", "torchvision.models.")


class Running:
    """The engine of a run. What it decides on the way is part of the run's state: a resumed run keeps it.

    name     sequential, stacked, graph; or auto: see `chosen`
    largest  most clients side by side in one stack, found by their need of memory; 0: no bound
    alone    clients do not train on several threads
    notes    what was decided on the way, for people; whoever shows them empties the list
    """

    def __init__(self, options: Options, client: Client) -> None:
        self.options, self.client = options, client
        self.notes: list[str] = []
        self.largest, self.alone, self.measured, self._refused = 0, False, False, False
        self.on_cpu = client.device.type == "cpu"
        cores = options.workers or max(1, torch.get_num_threads() // options.threads)
        self.workers = cores if self.on_cpu else 1
        known = _is_known(client)
        client.repeats = known if options.compile is None else options.compile != "none"
        client.precision = options.precision
        client.channels_last = self.on_cpu and known if options.channels_last is None else options.channels_last
        if self.on_cpu:
            memory.keep()
        name = options.name
        if name == "auto":
            name, why = chosen(client)
            self.notes.append(f"engine=auto: {name} ({why})")
        self._use(name)

    def _use(self, name: str, way: str | None = None) -> None:
        usual = "fuse" if name == "stacked" and self.client.repeats else "trace"
        self.traced = Traced(self.options.compile or usual, self._not_recorded)  # another engine has other operators
        self.name, self.engine = name, self._built(self.client, name, way)
        self.lanes: Lanes | None = None

    def _built(self, client: Client, name: str, way: str | None = None) -> Engine:
        if name == "graph":
            return Graph(client, lambda note: self.notes.append(note), way)
        traced = self.traced if self.on_cpu else None
        if name == "stacked":
            return Stacked(client, traced)
        recorded = traced is not None and client.repeats and not watchers(client.trainer)
        return OneByOne(client, traced) if recorded else Sequential(client, traced)

    @property
    def way(self) -> str | None:
        """How the graph engine computes gradients, once it has measured."""
        return self.engine.way if isinstance(self.engine, Graph) else None

    @contextmanager
    def cores(self) -> Iterator[None]:
        """On a CPU operators get the cores of one client, whatever the machine has: sums come out the same.

        For all of a round, aggregation too: what a client's tensors take costs more to hand to a second core.
        """
        before = torch.get_num_threads()
        try:
            if self.on_cpu:
                torch.set_num_threads(self.options.threads)
            yield
        finally:
            if self.on_cpu:
                torch.set_num_threads(before)

    def evaluating(self) -> AbstractContextManager[None]:
        """Where the task's validation_step runs."""
        return self.engine.forward.captured() if isinstance(self.engine, Graph) else nullcontext()

    def train(self, work: Sequence[Assignment], broadcast: Broadcast) -> Iterator[Message]:
        """The messages of all clients in the order of `work`, whatever has to be changed for it."""
        if work and not self.measured:
            self.measured = True
            self._measure(work, broadcast)
        done, rows = 0, self._rows(len(work))
        while done < len(work):
            try:
                for message in self._trained(work[done:], broadcast, rows):
                    done += 1
                    yield message
            except Exception as error:
                if not self._adapted(error, rows):
                    raise
                rows = self._rows(len(work))
            else:
                continue
            torch.cuda.empty_cache()  # of the engine before, which only the error's frames have held

    def _trained(self, work: Sequence[Assignment], broadcast: Broadcast, rows: int) -> Iterator[Message]:
        engine, part = self._next(work, rows)
        yield from engine.train(part, broadcast)

    def _next(self, work: Sequence[Assignment], rows: int) -> tuple[Engine, Sequence[Assignment]]:
        """Who trains next: all on several threads, or the next `rows` clients here."""
        if self.workers == 1 or self.alone or self.name == "graph" or len(work) <= rows:
            return self.engine, work[:rows]
        if self.lanes is None:
            self.traced.alone = False
            self.lanes = Lanes(self.client, partial(self._built, name=self.name), self.workers, self.options.threads)
        self.lanes.rows = rows
        return self.lanes, work

    def _rows(self, clients: int) -> int:
        """How many of so many clients are one stack; the same whatever the number of threads."""
        if self.name == "sequential":
            return 1
        most = clients
        if self.on_cpu and self.name == "stacked" and self.options.chunk is None:
            most = memory.rows_in_cache(memory.held(self.client.learned.values()), clients)
        return max(1, min(most, self.largest or most))

    def _adapted(self, error: Exception, rows: int) -> bool:
        """Change what an exception says cannot be done; False where nothing is left to change."""
        if isinstance(error, Unsupported) and self.name == "sequential":
            self.notes.append(f"local steps are not recorded from here on: {error}")
            self._use_python()
        elif isinstance(error, Unsupported):
            name, what = ("stacked", "be captured") if self.name == "graph" else ("sequential", "run as a stack")
            self.notes.append(f"engine={name} from here on: the task cannot {what}, {error}")
            self._use(name)
        elif isinstance(error, Alone):
            self._use_one_thread(str(error))
        elif memory.is_exhausted(error) and rows > 1:
            self.largest = rows // 2
            self.notes.append(f"out of memory with {rows} clients at once: {self.largest} from here on")
            self._use(self.name, self.way)
        elif memory.is_exhausted(error.__cause__ or error) and self.lanes is not None and not self.alone:
            self._use_one_thread("out of memory with clients on several threads")
        else:
            return False
        return True

    def _not_recorded(self, error: Exception) -> None:
        if not self._refused:
            why = str(error) if isinstance(error, Unsupported) else reason(error)
            self.notes.append(f"local steps that cannot be recorded go through Python: {why}")
        self._refused = True

    def _use_python(self) -> None:
        """Go through the task's own code in every step; if the fault was the task's, it shows there."""
        self.client.repeats = False
        self._use(self.name)

    def _use_one_thread(self, reason: str) -> None:
        self.notes.append(f"one thread from here on: {reason}")
        self.alone, self.lanes, self.traced.alone = True, None, True

    def _measure(self, work: Sequence[Assignment], broadcast: Broadcast) -> None:
        """What only a trial can tell: with measure=true which engine is faster, and how many clients the memory holds.

        A trial trains for a step or two and drops what comes of it; a client's training leaves nothing behind.
        """
        device = self.client.device
        if device.type == "cuda" and self.name != "sequential" and self.options.chunk is None:
            one = _shortened(work[:1], 1)
            with suppress(Unsupported):  # no stack, so no bound: graphs by branches may still run it
                need = memory.footprint(device, lambda: list(Stacked(self.client).train(one, broadcast)))
                need += memory.held(self.client.stack.tensors())  # which one client has already
                self.largest = memory.rows_that_fit(memory.free(device), need)
        if self.options.name == "auto" and self.options.measure:
            names = ("sequential", "stacked", *(() if self.on_cpu else ("graph",)))
            seconds = {name: self._seconds(name, work, broadcast) for name in names}
            self._use(min(names, key=seconds.__getitem__))
            found = ", ".join(f"{name} {1000 * s:.1f} ms" for name, s in seconds.items())
            self.notes.append(f"engine=auto: {self.name} (measured, a local step of {len(work)} clients: {found})")

    def _seconds(self, name: str, work: Sequence[Assignment], broadcast: Broadcast) -> float:
        self._use(name)
        self.traced.enough = 0  # recorded at once: that is how nearly all steps of a run go
        short = _shortened(work, 2)
        steps = max(len(one.batches) for one in short) if short else 1
        for _ in range(3):  # the first times warm up, and record
            started = perf_counter()
            engine, part = self._next(short, self._rows(len(short)))
            try:
                list(engine.train(part, broadcast))
            except Exception as error:
                if isinstance(error, Unsupported) and name == "sequential":
                    self._use_python()
                    return self._seconds(name, work, broadcast)
                if isinstance(error, Unsupported | Alone) or memory.is_exhausted(error):
                    return math.inf
                raise
        return (perf_counter() - started) * len(short) / len(part) / steps

    def checkpoint(self) -> dict[str, Any]:
        return {"name": self.name, "largest": self.largest, "alone": self.alone, "way": self.way}

    def restore(self, saved: dict[str, Any]) -> None:
        self.largest, self.alone, self.measured = saved["largest"], saved.get("alone", False), True
        name, way = saved["name"], saved.get("way")
        if name == "graph" and self.client.device.type != "cuda":
            self.notes.append(f"engine=stacked from here on: no graphs on {self.client.device.type}")
            name, way = "stacked", None
        if name != self.name or way != self.way:
            self._use(name, way)


def _is_known(client: Client) -> bool:
    """Whether nothing but tensors decides what a local step computes, whatever the strides: not so of code unseen."""
    task, data = client.task, client.data
    ours = (f is None or type(f).__module__.startswith("fedmuon.") for f in (data.transform, data.augment))
    return type(task) is ImageClassification and type(task.network).__module__.startswith(_KNOWN) and all(ours)


def chosen(client: Client) -> tuple[str, str]:
    """What engine=auto takes, and why: a function of device and model, so that runs of one seed agree.

    An NVIDIA GPU takes graphs, another GPU stacks. On a CPU small models without convolutions are stacked, whose step
    costs more in calls than in arithmetic; grouped convolutions are slower there than one client after the other, and
    large operators gain nothing.
    """
    device, count = client.device.type, sum(p.numel() for p in client.learned.values())
    if device != "cpu":
        return "graph" if device == "cuda" else "stacked", device
    convolutions = any(isinstance(m, nn.modules.conv._ConvNd) for m in client.task.modules())
    kind = "with convolutions" if convolutions else "no convolutions"
    return "sequential" if convolutions or count > _SMALL else "stacked", f"cpu, {kind}, {count:,} parameters"


def _shortened(work: Sequence[Assignment], steps: int) -> list[Assignment]:
    return [replace(one, batches=one.batches[:steps]) for one in work]
