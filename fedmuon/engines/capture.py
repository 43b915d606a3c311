"""CUDA graphs of functions that read and write tensors in fixed places."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol
from weakref import WeakSet

import torch

Function = Callable[[], None]
Branch = Callable[[int], AbstractContextManager[Any]]


class Graphs(Protocol):
    """Records functions once and replays what they did. Numbers of Python are those of the recording ever after."""

    def alone(self) -> AbstractContextManager[Any]:
        """Where everything of a round happens, recorded or not."""

    def side_by_side(self) -> AbstractContextManager[Branch]:
        """Gives what enters branch 0, 1, ...: they start together, and what follows waits for all of them."""

    def guarded(self) -> AbstractContextManager[Any]:
        """Where whatever waits for the device raises, in the line that does it: no recording could hold it."""

    def capture(self, function: Function) -> Function:
        """Record a function that has run before, without running it; returns its replay."""

    def milliseconds(self, replay: Function) -> float:
        """How long a replay takes."""


class CudaGraphs:
    """`Graphs` of one device. Those alive share one pool of memory, as nothing in it outlives a replay."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()
        self._branches: list[torch.cuda.Stream] = []

    @contextmanager
    def alone(self) -> Iterator[None]:
        outside = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(outside)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            torch.cuda.set_stream(outside)  # a capture that fails may leave another one
            outside.wait_stream(self._stream)

    @contextmanager
    def side_by_side(self) -> Iterator[Branch]:
        main = torch.cuda.current_stream(self.device)
        fork, used = main.record_event(), []

        def branch(number: int) -> AbstractContextManager[Any]:
            while len(self._branches) <= number:
                self._branches.append(torch.cuda.Stream(self.device))
            used.append(self._branches[number])
            used[-1].wait_event(fork)
            return torch.cuda.stream(used[-1])

        try:
            yield branch
        finally:  # also where a branch raised: what follows may write where the others still compute
            for stream in used:
                main.wait_stream(stream)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it calls itself a prototype
            torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)

    def capture(self, function: Function) -> Function:
        if not self._graphs:
            self._pool = torch.cuda.graph_pool_handle()  # torch retires a pool with the last of its graphs
        graph = torch.cuda.CUDAGraph()
        try:
            with (
                torch.inference_mode(False),  # what the first capture in that mode makes is of no use outside it
                torch.no_grad(),
                torch.cuda.graph(graph, pool=self._pool, stream=self._stream),
            ):
                function()
        except BaseException:
            self._pool = torch.cuda.graph_pool_handle()  # the old one may have stayed in recording
            raise
        self._graphs.add(graph)
        return graph.replay

    def milliseconds(self, replay: Function, repeats: int = 5) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        replay()
        start.record()
        for _ in range(repeats):
            replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / repeats
