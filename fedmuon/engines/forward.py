"""The networks of a task on evaluation batches, as CUDA graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor, nn

from fedmuon.engines.capture import Graphs
from fedmuon.engines.generators import states
from fedmuon.engines.memory import is_exhausted
from fedmuon.engines.pieces import MOST, Pieces
from fedmuon.engines.ways import Unsupported


class Forward:
    """What the modules of a task compute in its validation_step, captured for each shape that comes often enough.

    These are the task's own attributes with parameters, such as its `network`. A call is captured that gives tensors
    and gets one; any other, and the rest of the step (metrics, `self.log`), is the Python that it is.
    """

    def __init__(self, task: LightningModule, graphs: Graphs, note: Callable[[str], None]) -> None:
        self.graphs, self.note, self.device = graphs, note, task.device
        self._modules = {
            name: module
            for name, module in task.named_children()
            if any(True for _ in module.parameters()) and not isinstance(module, torch.jit.ScriptModule)
        }
        self._refused: set[str] = set()
        self._inside = False  # a module that is being captured, whose own calls are part of it
        self._pieces, self._calls = Pieces(graphs), Counter[Hashable]()
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
        parts = list(self._modules[name].modules())
        if name in self._refused or self._inside or not self._is_plain(parts, given, named):
            return forward(*given, **named)
        kind = self.device.type
        precision = (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        modes = tuple(module.training for module in parts)
        shapes = (name, modes, precision, *((t.shape, t.dtype) for t in given))
        self._calls[shapes] += 1
        try:
            if shapes in self._places:
                return self._replayed(shapes, parts, forward, given)
            if self._calls[shapes] > 1 and len(self._places) < MOST:  # what comes once is not worth a place
                return self._first(name, shapes, forward, given)
        except RuntimeError as error:
            if not (isinstance(error, Unsupported) or is_exhausted(error)):
                raise
            self._refuse(name, str(error))
        return forward(*given)

    def _is_plain(self, parts: Sequence[nn.Module], given: Sequence[Any], named: Mapping[str, Any]) -> bool:
        """Whether a call is a function of tensors on the device alone, without gradients."""
        here = all(isinstance(t, Tensor) and t.device == self.device for t in given)
        draws = (isinstance(module, nn.modules.dropout._DropoutNd) and module.training for module in parts)
        hooked = (module._forward_hooks or module._forward_pre_hooks for module in parts)
        return here and not named and not torch.is_grad_enabled() and not any(draws) and not any(hooked)

    def _first(self, name: str, shapes: Hashable, forward: Callable[..., Any], given: Sequence[Tensor]) -> Any:
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

    def _replayed(
        self, shapes: Hashable, parts: Sequence[nn.Module], forward: Callable[..., Any], given: Sequence[Tensor]
    ) -> Tensor:
        into, out = self._places[shapes]
        for place, t in zip(into, given, strict=True):
            place.copy_(t)
        held = (t for m in parts for t in (*m._parameters.values(), *m._buffers.values(), *vars(m).values()))
        addresses = [t.data_ptr() for t in held if isinstance(t, Tensor)]  # where a replay reads
        self._pieces.run((shapes, *addresses), partial(self._into, out, forward, into))
        return out.clone()

    def _into(self, out: Tensor, forward: Callable[..., Any], given: Sequence[Tensor]) -> None:
        self._inside = True
        try:
            torch.clear_autocast_cache()  # a cast weight is that of this run, and must not be found by a recording
            out.copy_(forward(*given))
            torch.clear_autocast_cache()
        finally:
            self._inside = False

    def _refuse(self, name: str, why: str) -> None:
        self.note(f"engine=graph: evaluation calls {name} as it is: {why}")
        self._refused.add(name)
