"""fedmuon: optimizers for federated learning, compared and reproduced. FedMuon is the one of arXiv 2510.27403.

run       do what the command does        federate   federate one's own LightningModule
load      the final model of a run        polar      the polar factor of a stack of matrices
Everything is loaded on first use: `import fedmuon` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmuon.api import federate as federate
    from fedmuon.cli import run as run
    from fedmuon.errors import UsageError as UsageError
    from fedmuon.federation import Federation as Federation
    from fedmuon.optim.polar import polar as polar
    from fedmuon.saved import load as load

_HOME = {
    "Federation": "federation",
    "UsageError": "errors",
    "federate": "api",
    "load": "saved",
    "polar": "optim.polar",
    "run": "cli",
}

__version__ = "0.1.0"
VERSION = f"fedmuon {__version__}"  # what every command answers to --version


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
