"""The polar factor, parameter routing and server optimizers.

`polar` and `adaptive` need torch and are loaded on first use, so that a configuration is checked without it.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedmuon.optim import adaptive as adaptive
    from fedmuon.optim import polar as polar


def __getattr__(name: str) -> ModuleType:
    if name in ("adaptive", "polar"):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
