"""A user's own Lightning hooks: which of them a federation calls, and one line that names the others."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

from lightning import LightningModule
from lightning.pytorch.core.hooks import CheckpointHooks, DataHooks, ModelHooks

from fedmuon.errors import UsageError
from fedmuon.faults import named
from fedmuon.recorder import Recorder

# Called: before the parameters are looked at; by `Federation` around a fit; around each evaluated part.
CALLED = (
    "setup", "configure_model",
    "on_fit_start", "on_fit_end", "on_train_start", "on_train_end",
    "on_validation_epoch_start", "on_validation_epoch_end",
)  # fmt: skip
_BESIDE = (
    "backward", "optimizer_step", "optimizer_zero_grad", "lr_scheduler_step", "configure_gradient_clipping",
    "configure_callbacks", "test_step",
)  # fmt: skip
_HOOKS = [name for kind in (ModelHooks, DataHooks, CheckpointHooks) for name in vars(kind) if not name.startswith("_")]


def set_up(module: LightningModule) -> None:
    """What Lightning calls before a fit looks at the parameters. Raises UsageError for what goes wrong in it."""
    with named(f"module={type(module).__name__}: setup", UsageError):
        module.setup(stage="fit")
    with named(f"module={type(module).__name__}: configure_model", UsageError):
        module.configure_model()


def call(module: LightningModule, name: str, recorder: Recorder) -> dict[str, float]:
    """Call a hook without arguments; what it logged. An error names the hook."""
    recorder.reset()
    with named(f"{type(module).__name__}.{name}"):
        getattr(module, name)()
    logged = recorder.means()
    recorder.reset()
    return logged


def step(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """A task's training_step or validation_step as a function of (batch, batch_idx), whichever it takes.

    As in Lightning it may take the batch alone; `dataloader_idx` without a default is 0.
    """
    parameters = signature(function).parameters.values()
    if any(one.kind is Parameter.VAR_POSITIONAL for one in parameters):
        return function
    takes = [one for one in parameters if one.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    if len(takes) == 1:
        return lambda batch, batch_idx: function(batch)
    if len(takes) == 3 and takes[2].default is Parameter.empty:
        return lambda batch, batch_idx: function(batch, batch_idx, 0)
    return function


def left_out(module: LightningModule, tests: bool) -> list[str]:
    """The hooks that `module` defines and that nobody calls; those of the test loop where test samples are given."""
    names = [name for name in (*_HOOKS, *_BESIDE) if name not in CALLED and "predict" not in name]
    return [name for name in names if (tests or "test" not in name) and _defines(module, name)]


def _defines(module: LightningModule, name: str) -> bool:
    return getattr(type(module), name, None) is not getattr(LightningModule, name, None)
