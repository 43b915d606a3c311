"""The networks of a task on evaluation batches, as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor

from fedmuon.engines.capture import Graphs
from fedmuon.engines.generators import states
from fedmuon.engines.memory import is_exhausted
from fedmuon.engines.pieces import Pieces
from fedmuon.engines.ways import Unsupported


class Forward:
    """What the modules of a task compute in its validation_step, captured for each shape that comes often enough.

    These are the task's own attributes with parameters, such as its `network`. A call is captured that gives tensors
    and gets one; any other, and the rest of the step (metrics, `self.log`), is the Python that it is.
    """

    def __init__(self, task: LightningModule, graphs: Graphs, note: Callable[[str], None]) -> None:
        self.graphs, self.note, self.device = graphs, note, task.device
        self._modules = {name: m for name, m in task.named_children() if any(True for _ in m.parameters())}
        self._refused: set[str] = set()
        self._pieces = Pieces(graphs)
        self._places: dict[Hashable, tuple[list[Tensor], Tensor]] = {}  # of what is given and what comes out

    @contextmanager
    def captured(self) -> Iterator[None]:
        """Where a module that is called may be a replay."""
        own: dict[str, Any] = {name: vars(module).get("forward") for name, module in self._modules.items()}
        for name, module in self._modules.items():
            module.forward = partial(self._call, name, module.forward)
        try:
            with self.graphs.alone():
                yield
        finally:
            for name, module in self._modules.items():
                del module.forward
                if own[name] is not None:
                    module.forward = own[name]

    def _call(self, name: str, forward: Callable[..., Any], *given: Any, **named: Any) -> Any:
        module = self._modules[name]
        hooked = any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())
        if name in self._refused or hooked or named or not all(isinstance(t, Tensor) for t in given):
            return forward(*given, **named)
        shapes = (name, module.training, *((t.shape, t.dtype) for t in given))
        if shapes not in self._places:
            return self._first(name, shapes, forward, given)
        into, out = self._places[shapes]
        for place, t in zip(into, given, strict=True):
            place.copy_(t)
        addresses = [t.data_ptr() for t in chain(module.parameters(), module.buffers())]  # where a replay reads
        try:
            self._pieces.run((shapes, *addresses), partial(_into, out, forward, into))
        except RuntimeError as error:
            if not (isinstance(error, Unsupported) or is_exhausted(error)):
                raise
            self._refuse(name, str(error))
            return forward(*given)
        return out.clone()

    def _first(self, name: str, shapes: Hashable, forward: Callable[..., Any], given: tuple[Tensor, ...]) -> Any:
        """Call it as it is, and make the places of later calls."""
        before = states(self.device)
        found = forward(*given)
        if not isinstance(found, Tensor):
            self._refuse(name, f"it returns {type(found).__name__}, not a tensor")
        elif states(self.device) != before:
            self._refuse(name, "it draws from a random generator of the process")
        else:
            with torch.inference_mode(False):  # of any mode: not all evaluation is in that one
                self._places[shapes] = [torch.empty_like(t) for t in given], torch.empty_like(found)
        return found

    def _refuse(self, name: str, why: str) -> None:
        self.note(f"engine=graph: evaluation calls {name} as it is: {why}")
        self._refused.add(name)


def _into(out: Tensor, forward: Callable[..., Any], given: list[Tensor]) -> None:
    torch.clear_autocast_cache()  # a cast weight is that of this run, and must not be found by a recording
    out.copy_(forward(*given))
    torch.clear_autocast_cache()
