"""The cohort's local step as CUDA graphs: the host only says "again"."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter

import torch
from torch import Tensor, nn

from fedmuon.client import Client
from fedmuon.data.feature_shift import Shift
from fedmuon.engines.capture import CudaGraphs, Function, Graphs
from fedmuon.engines.cohort import Cohort
from fedmuon.engines.engine import Assignment, Broadcast, Message, State
from fedmuon.engines.forward import Forward
from fedmuon.engines.generators import states
from fedmuon.engines.memory import is_exhausted
from fedmuon.engines.parts import Part, runs
from fedmuon.engines.pieces import Pieces
from fedmuon.engines.ways import Loss, Unsupported, Way, branches, stacked


class Graph:
    """Local steps of a cohort in two kinds of pieces, each captured once it has come often enough.

    gradients  of the clients whose batches have one size, for every (clients, size): gather of the samples,
               augmentation, forward and backward, in the way that is faster for the model (`way`)
    update     of the first so many clients: clip, local rule, step counter

    Everything that changes from step to step lies in tensors: the indices and keys of a round are uploaded at its
    start, rates and counters are on the device, and nothing waits for the device before the messages are read. What
    Python computes in `training_step` is what it was when the piece was captured; `batch_idx` is a tensor.

    way  "stacked" or "branches" (one stream a client), measured on the first step's largest part unless given
    """

    quiet = False

    def __init__(
        self, client: Client, note: Callable[[str], None], way: str | None = None, graphs: Graphs | None = None
    ) -> None:
        self.client, self.note, self.way = client, note, way
        self.graphs = graphs or CudaGraphs(client.device)
        self.forward = Forward(client.task, self.graphs, note)
        self.loss, self._pieces = Loss(client), Pieces(self.graphs)
        self._parts: dict[Hashable, Part] = {}  # of each piece, with its own place for the numbers that change
        self.k = torch.zeros((), dtype=torch.int64, device=client.device)  # steps taken in the round
        self.t = torch.zeros_like(self.k)  # steps of all rounds before
        self._waits = any(group.rule.waits for group in client.stack.groups)
        self._largest: Cohort | None = None
        self._down: State = {}
        if self._waits:
            note("engine=graph: the local rule waits for the device (polar.method=svd): the update is not captured")

    def train(self, work: Sequence[Assignment], broadcast: Broadcast) -> Iterator[Message]:
        """Yield the messages in the order of `work`. Raises `Unsupported` before the first of them."""
        if not work:
            return
        started = perf_counter()
        rows = sorted(work, key=lambda one: -len(one.batches))
        with self.graphs.alone(), torch.autocast(self.client.device.type, enabled=False), torch.no_grad():
            cohort = self._cohort(len(rows))
            self._start(cohort, broadcast, rows)
            seeds = [one.seed for one in rows]
            steps = [step for run in runs([one.batches for one in rows], seeds, self.client.device) for step in run]
            if self.way is None:
                self._choose(cohort, max(steps[0], key=lambda part: part.index.numel()))
            if cohort.stack.algorithm.full_gradient:
                self._full_gradients(cohort, rows)
            for step in steps:
                for part in step:
                    self._gradients(cohort, part)
                self._update(cohort, sum(len(part.rows) for part in step))
            self.client.meanwhile()
            cohort.stack.end([len(one.batches) for one in rows])
        yield from cohort.messages(work, rows, started)

    def _cohort(self, size: int) -> Cohort:
        """Memory for so many clients, made once for the most there have been: captured pieces keep its addresses."""
        if self._largest is None or self._largest.size < size:
            self._forget()
            self._largest, self._memory = None, {}
            self._largest = Cohort(self.client, size)
            self._memory = {name: torch.zeros_like(t) for name, t in self._largest.stack.x.items()}  # of gradients
            self._shift = Shift(*(torch.zeros(size, dtype=torch.float32, device=self.client.device) for _ in range(2)))
        return self._largest.first(size)

    def _start(self, cohort: Cohort, broadcast: Broadcast, rows: Sequence[Assignment]) -> None:
        """Begin a round, with what the server sends in places that stay."""
        if {slot: list(tensors) for slot, tensors in self._down.items()} != {
            slot: list(tensors) for slot, tensors in broadcast.states.items()
        }:
            self._forget()
            self._down = {s: {n: t.clone() for n, t in tensors.items()} for s, tensors in broadcast.states.items()}
        for slot, tensors in broadcast.states.items():
            for name, t in tensors.items():
                self._down[slot][name].copy_(t)
        self.k.zero_()
        self.t.fill_(broadcast.t)
        cohort.start(replace(broadcast, states=self._down, t=self.t), rows)
        cohort.shift = None
        if any(one.features for one in rows):
            for place, values in zip(
                (self._shift.noise, self._shift.degrees), zip(*(one.features for one in rows), strict=True), strict=True
            ):
                assert place is not None
                place[: len(rows)].copy_(torch.tensor(values))
            cohort.shift = self._shift

    def _forget(self) -> None:
        """Drop what was captured of places that are no more."""
        self._pieces.clear()
        self._parts.clear()

    def _gradients(self, cohort: Cohort, part: Part) -> None:
        """Leave the gradients of a part's clients in their rows of the memory."""
        key, placed = self._placed(part)
        assert self.way is not None
        self._pieces.run(key, self._computation(cohort, placed, self.way))

    def _placed(self, part: Part) -> tuple[Hashable, Part]:
        """The key of a part's piece, and the part with its numbers where the piece reads them."""
        key = ("gradients", len(part.rows), part.size, part.leading, self.client.switches())
        if key not in self._parts:
            self._parts[key] = Part(part.rows, part.numbers.clone())
        self._parts[key].numbers.copy_(part.numbers)
        return key, self._parts[key]

    def _computation(self, cohort: Cohort, part: Part, way: str) -> Function:
        computed = self.ways[way](part.size)

        def function() -> None:
            count = len(part.rows)
            into = {name: t[:count] for name, t in self._memory.items()} if part.leading else None
            found = cohort.gradients(part, computed, self.k, into)
            torch.clear_autocast_cache()  # a cast weight is that of this run, and must not be found by a recording
            if isinstance(where := part.where, Tensor):
                for name, g in found.items():
                    self._memory[name].index_copy_(0, where, g)

        return function

    def _update(self, cohort: Cohort, active: int) -> None:
        def function() -> None:
            self.k.add_(1)
            cohort.first(active).stack.step({name: t[:active] for name, t in self._memory.items()}, self.k)

        if self._waits:
            function()
        else:
            self._pieces.run(("update", active), function)

    # -- the choice of the way

    @property
    def ways(self) -> dict[str, Callable[[int], Way]]:
        """Each as a function of the batch size."""
        side_by_side = self.graphs.side_by_side
        found: dict[str, Callable[[int], Way]] = {
            "stacked": partial(stacked, self.loss),
            "branches": partial(branches, self.loss, side_by_side=side_by_side),
        }
        if any(isinstance(module, nn.Conv2d) for module in self.client.task.modules()):
            found["branches, channels last"] = partial(
                branches, self.loss, side_by_side=side_by_side, channels_last=True
            )
        return found

    def _choose(self, cohort: Cohort, part: Part) -> None:
        """Capture the gradients of a part in every way that the task allows, and keep the fastest."""
        key, placed = self._placed(part)
        times: dict[str, float] = {}
        replays: dict[str, Function] = {}
        refused: RuntimeError | None = None
        for name in self.ways:
            function = self._computation(cohort, placed, name)
            with cohort.unchanged():
                try:
                    before = states(self.client.device)
                    function()
                    if states(self.client.device) != before:
                        raise Unsupported("it draws from a random generator of the process, which clients would share")
                    self._pieces.guarded(function)
                    replays[name] = self._pieces.capture(function)
                    times[name] = self.graphs.milliseconds(replays[name])
                except RuntimeError as error:
                    if not (isinstance(error, Unsupported) or is_exhausted(error)):
                        raise
                    refused = type(error)(str(error))  # without the frames, which hold what the way has computed
        if not times:
            assert refused is not None
            raise refused
        self.way = min(times, key=lambda name: times[name])
        self._pieces.keep(key, replays[self.way])
        measured = ", ".join(f"{name} {ms:.2f} ms" for name, ms in times.items())
        self.note(f"engine=graph: gradients of {len(part.rows)} clients: {measured}; {self.way} from here on")

    def _full_gradients(self, cohort: Cohort, rows: Sequence[Assignment]) -> None:
        """Fill the slot "gradient" as a client alone does; buffers stay as they are."""
        with cohort.unchanged():
            for part in cohort.full_gradient_parts(rows):
                self._gradients(cohort, part)
                found = {name: t[part.where] for name, t in self._memory.items()}
                cohort.add_full_gradient(part, found, rows)
