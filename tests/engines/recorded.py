"""Stands for CUDA graphs on a CPU: what a function did to tensors is recorded and done again, with nothing of Python.

As in a graph, every tensor of the recording keeps its place in memory and a replay computes anew what lies there: a
number of Python is that of the recording, and an operation that waits for the device, or brings something from the
host, is refused.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

REFUSED = ("lift_fresh", "_local_scalar_dense", "nonzero", "masked_select", "equal", "_linalg_svd", "rand", "bernoulli")


def _storages(tree: Any) -> set[int]:
    return {t.untyped_storage()._cdata for t in tree_leaves(tree) if isinstance(t, Tensor)}


def _aliases(tree: Any) -> Any:
    """The same memory with the shape of now, which an operation in place may change."""
    return tree_map(lambda t: t.detach() if isinstance(t, Tensor) else t, tree)


class _Refusing(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masks = name.startswith("index") and any(
            isinstance(t, Tensor) and t.dtype == torch.bool for t in tree_leaves(args[1])
        )
        if masks or any(name == one or (one == "rand" and name.startswith(one)) for one in REFUSED):
            raise RuntimeError(f"called a synchronizing operation: {name}")
        return self.done(func, args, kwargs or {})

    def done(self, func: Any, args: Any, kwargs: Any) -> Any:
        return func(*args, **kwargs)


class _Recording(_Refusing):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.alive: list[Any] = []
        self._made: set[int] = set()
        self._before: dict[int, tuple[Any, Any]] = {}

    def done(self, func: Any, args: Any, kwargs: Any) -> Any:
        for t in tree_leaves((args, kwargs)):
            if isinstance(t, Tensor) and (key := t.untyped_storage()._cdata) not in self._made | self._before.keys():
                self._before[key] = (t.untyped_storage(), t.untyped_storage().clone())
        given = _aliases((args, kwargs))
        out = func(*args, **kwargs)
        self.alive.append((args, kwargs, out))
        self._made |= _storages(out) - self._before.keys()
        if not (func.is_view and _storages(out) <= _storages((args, kwargs))):  # a view lies where it lay, "to" may not
            self.calls.append((func, *given, _aliases(out)))
        return out

    def undo(self) -> None:
        """A capture computes nothing: what existed before is what it was."""
        for storage, content in self._before.values():
            storage.copy_(content)

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, out in self.calls:
            anew = func(*args, **kwargs)
            for place, value in zip(tree_leaves(out), tree_leaves(anew), strict=True):
                if isinstance(place, Tensor) and not _storages(place) & _storages(value):
                    place.copy_(value)


class Recorded:
    """`Graphs` for tests. `faster` is the way that measures fastest, "stacked" being the first."""

    def __init__(self, faster: int = 0) -> None:
        self.faster, self.captures, self.replays, self._timed = faster, 0, 0, 0

    def alone(self) -> Any:
        return nullcontext()

    @contextmanager
    def side_by_side(self) -> Iterator[Any]:
        yield lambda number: nullcontext()

    def guarded(self) -> Any:
        return _Refusing()

    def capture(self, function: Any) -> Any:
        self.captures += 1
        recording = _Recording()
        with recording:
            function()
        recording.undo()

        def replay() -> None:
            self.replays += 1
            recording.replay()

        return replay

    def milliseconds(self, replay: Any) -> float:
        self._timed += 1
        replay()
        return 1.0 if self._timed == self.faster + 1 else 2.0
