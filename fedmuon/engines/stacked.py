"""Cohorts whose local steps are functions of tensors: a stack of clients side by side, or one client at a time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from fedmuon.client import Client
from fedmuon.engines.cohort import Cohort
from fedmuon.engines.engine import Assignment, Broadcast, Message, Tensors
from fedmuon.engines.generators import states
from fedmuon.engines.memory import is_exhausted
from fedmuon.engines.parts import Part, Run, runs
from fedmuon.engines.trace import Flat, Traced
from fedmuon.engines.ways import Loss, Unsupported, Way, branches, reason, repeated, stacked


class _Key(NamedTuple):
    """What the operators of a whole local step go by, and whether they may be fused."""

    kind: str
    fused: bool
    rows: int
    size: int
    sums: tuple[str, ...]
    switches: Hashable
    shift: Hashable


class Stacked:
    """All clients of a chunk take their local steps together; see `Cohort`.

    `traced` repeats the operators of steps whose shapes come again; engines on several threads share it. `quiet`: in
    the last `train` that was all, and nothing of the task's Python ran or drew random numbers.
    """

    way: Callable[[Loss, int], Way] = staticmethod(stacked)  # to the gradients of batches of a size

    def __init__(self, client: Client, traced: Traced | None = None) -> None:
        self.client, self.loss, self.traced = client, Loss(client), traced or Traced("none")
        self.quiet = False
        self._largest: Cohort | None = None
        self._tried: set[tuple[int, int]] = set()  # (rows, batch size) of steps whose numbers are known

    def train(self, work: Sequence[Assignment], broadcast: Broadcast) -> Iterator[Message]:
        """Yield the messages in the order of `work`. Raises `Unsupported` before the first of them."""
        if not work:
            return
        started = perf_counter()
        rows = sorted(work, key=lambda one: -len(one.batches))
        cohort = self._cohort(len(rows))
        cohort.start(broadcast, rows)
        steps = runs([one.batches for one in rows], [one.seed for one in rows], self.client.device)
        for run in steps:
            self._find_sums(cohort, run, rows)
        of_runs = [(self._key(cohort, run), cohort.first(run.active), run) for run in steps]
        full = cohort.stack.algorithm.full_gradient
        self.quiet = not full and all(self.traced.quiet(key) for key, *_ in of_runs)
        with nullcontext() if self.quiet else self.through_python(rows):
            if full:
                self._full_gradients(cohort, rows)
            for key, first, run in of_runs:
                if key is None:
                    for number, step in enumerate(run, start=run.first):
                        self._step(first, step, number, number + 1)
                else:
                    self._repeated(key, first, run)
        self.client.meanwhile()
        cohort.stack.end([len(one.batches) for one in rows])
        yield from cohort.messages(work, rows, started)

    @contextmanager
    def through_python(self, rows: Sequence[Assignment]) -> Iterator[None]:
        """Where the task's code runs for these clients."""
        untouched = states(self.client.device) if self.client.alone else ()
        with torch.autocast(self.client.device.type, enabled=False):
            yield
        if untouched and states(self.client.device) != untouched:
            raise Unsupported("it draws from a random generator of the process, which clients would share")

    def _cohort(self, size: int) -> Cohort:
        """Memory for so many clients, made once for the most there have been."""
        if self._largest is None or self._largest.size < size:
            self._largest = None  # gives the old memory back before the new is taken
            self._largest = Cohort(self.client, size)
        return self._largest.first(size)

    def _find_sums(self, cohort: Cohort, run: Run, rows: Sequence[Assignment]) -> None:
        """Make a place for the numbers that steps log which are to be recorded when they first come.

        One by one, as a task may log a number at some batch sizes only: that a step is fused must not depend on those
        that came before.
        """
        shape = (run.active, run.size)
        if len(run.rows) > 1 or shape in self._tried or not self.traced.rounds_otherwise(self._is_fused(cohort, run)):
            return
        self._tried.add(shape)
        with self.through_python(rows), cohort.unchanged():
            cohort.gradients(next(iter(run))[0], self.way(self.loss, run.size), 0)

    def _is_fused(self, cohort: Cohort, run: Run) -> bool:
        """Whether steps are of the usual shape, of which there are few: each is recorded at its first step."""
        return run.active == cohort.size and run.size == self.client.batch_size

    def _key(self, cohort: Cohort, run: Run) -> _Key | None:
        """Of local steps that are recorded as a whole; None for others."""
        repeats = self.traced.how != "none" and self.client.repeats and cohort.stack.repeats
        if len(run.rows) > 1 or not cohort.sums or not repeats:
            return None
        fused, shift, sums = self._is_fused(cohort, run), cohort.shift and cohort.shift.changes, tuple(cohort.sums)
        return _Key("local step", fused, run.active, run.size, sums, self.client.switches(), shift)

    def _step(self, cohort: Cohort, step: list[Part], number: int | Tensor, k: int | Tensor) -> None:
        """Local step k = number + 1 of all clients of the cohort: gradients, clip, rules, sums of what is logged."""
        cohort.stack.step(self._gradients(cohort, step, number), k, self.traced)

    def _repeated(self, key: _Key, cohort: Cohort, run: Run) -> None:
        """Steps whose operators are repeated where they can be."""
        (rows,), (numbers,), held = run.rows, run.numbers, cohort.tensors()

        def step(flat: Flat) -> tuple[Flat, None]:
            own, k, *tensors = flat
            recorded = any(t is not mine for t, mine in zip(tensors, held, strict=True))
            inside = cohort.around(iter(tensors)) if recorded else cohort
            self._step(inside, [Part(rows, own)], k - 1, k)
            if recorded and len(inside.sums) > len(cohort.sums):
                raise ValueError("a number that was not logged before has no place in the record")
            return [], None

        try:
            self.traced.loop(key, step, numbers, run.first + 1, held, key.fused)
        except RuntimeError as error:  # the interpreter's, which says neither client nor step
            if isinstance(error, Unsupported) or is_exhausted(error):
                raise
            raise Unsupported(reason(error)) from error

    def _gradients(self, cohort: Cohort, step: list[Part], number: int | Tensor) -> Tensors:
        """Gradients of the cohort's clients, [C, ...]."""
        found = [cohort.gradients(part, self._way(part), number) for part in step]
        if len(step) == 1:
            return found[0]
        gradients = {name: torch.empty_like(t) for name, t in cohort.stack.x.items()}
        for part, own in zip(step, found, strict=True):
            for name, g in own.items():
                gradients[name][part.where] = g
        return gradients

    def _way(self, part: Part) -> Way:
        way = self.way(self.loss, part.size)
        return repeated(way, self.client, part.size, self.traced) if self.client.repeats else way

    def _full_gradients(self, cohort: Cohort, rows: Sequence[Assignment]) -> None:
        """Fill the slot "gradient" as a client alone does; buffers stay as they are."""
        with cohort.unchanged():
            for part in cohort.full_gradient_parts(rows):
                cohort.add_full_gradient(part, cohort.gradients(part, self._way(part), 0), rows)


class OneByOne(Stacked):
    """The same for one client at a time, whose steps take no vmap: what it computes is what it computes alone.

    It may draw from random generators of the process, which start from the client's seed.
    """

    way = staticmethod(branches)

    @contextmanager
    def through_python(self, rows: Sequence[Assignment]) -> Iterator[None]:
        (one,) = rows
        with (
            self.client.seeded(one.seed),
            self.client.laid_out(),
            torch.autocast(self.client.device.type, enabled=False),
        ):
            yield
