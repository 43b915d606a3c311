"""Pieces of work on a device, each captured by itself once it has come often enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from fedmuon.engines.capture import Function, Graphs
from fedmuon.engines.memory import is_exhausted
from fedmuon.engines.ways import Unsupported, reason

_EAGER = 2  # runs of a piece before it is captured: its libraries have chosen their kernels, and few shapes come once
MOST = 128  # captured pieces; what comes later runs uncaptured


class Pieces:
    """Functions by key, the same function of the same places whenever the key is the same.

    Raises `Unsupported` with the line of a function that no graph can hold.
    """

    def __init__(self, graphs: Graphs) -> None:
        self.graphs = graphs
        self._runs: Counter[Hashable] = Counter()
        self._replays: dict[Hashable, Function] = {}

    def run(self, key: Hashable, function: Function) -> None:
        """A replay, or the function itself until it has run often enough to be captured."""
        self._runs[key] += 1
        if key not in self._replays and self._runs[key] > _EAGER and len(self._replays) < MOST:
            self._replays[key] = self.capture(function)
        if key in self._replays:
            self._replays[key]()
        elif self._runs[key] == 1:
            function()
        else:
            self.guarded(function)

    def keep(self, key: Hashable, replay: Function) -> None:
        """A piece that has been captured elsewhere."""
        self._replays[key] = replay

    def clear(self) -> None:
        self._runs.clear()
        self._replays.clear()

    def guarded(self, function: Function) -> None:
        """Run a function where waiting for the device raises."""
        try:
            with self.graphs.guarded():
                function()
        except RuntimeError as error:
            if isinstance(error, Unsupported) or is_exhausted(error):
                raise
            raise Unsupported(reason(error)) from error

    def capture(self, function: Function) -> Function:
        """The replay of a function that has run before."""
        try:
            return self.graphs.capture(function)
        except Exception as error:
            first: BaseException = error  # ending a broken capture raises again
            while first.__context__ is not None and not (isinstance(first, Unsupported) or is_exhausted(first)):
                first = first.__context__
            if isinstance(first, Unsupported) or is_exhausted(first):
                raise first from None
            raise Unsupported(reason(first)) from error
