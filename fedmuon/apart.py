"""The keys that say how, where and how long a run is computed and watched, never what is computed. No torch.

A resumed run may be given others, a search goes on under others, and to the report runs that differ in them are alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

APART = (
    "run_dir", "resume", "logger", "callbacks", "checkpoint", "evaluation.targets", "data.root", "engine.workers",
    "trainer.accelerator", "trainer.max_time", "trainer.profiler",
)  # fmt: skip


def among(key: str, keys: Iterable[str] = APART) -> bool:
    """Whether a dotted key is one of some keys, or below one."""
    return any(key == one or key.startswith(f"{one}.") for one in keys)


def gone(config: Mapping[str, Any]) -> list[str]:
    """The keys of a flat configuration that are of an earlier version, in which they changed nothing."""
    ours = config.get("data._target_") == "fedmuon.data.image_data"  # a data set of one's own may have such a key
    return [key for key in ("trainer.devices", *["data.labels"] * ours) if key in config]


def flat(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every leaf of nested mappings; lists are values."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value
