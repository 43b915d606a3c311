"""Which keys of a configuration decide what comes out, and which say only where it is computed and how it is watched.

From this one list a sweep knows which runs it has, the report which runs are alike, a search what it searches, and
`resuming` what may change on the way. What changes a bit of the result on the same machine decides. No torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

APART = (
    "run_dir", "resume", "logger", "checkpoint", "evaluation.targets", "engine.workers", "trainer.accelerator",
    "trainer.max_time", "trainer.profiler", "trainer.inference_mode", "trainer.detect_anomaly",
    "trainer.num_sanity_val_steps",
)  # fmt: skip
# Callbacks that only watch; any other may decide, as early stopping does.
_WATCHING = (
    "DeviceStatsMonitor", "LearningRateMonitor", "ModelCheckpoint", "ModelSummary", "OnExceptionCheckpoint",
    "RichModelSummary", "RichProgressBar", "ThroughputMonitor", "TQDMProgressBar",
)  # fmt: skip


def computed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a flat configuration that decide what comes out."""
    without = [*APART, *_watching(config), *gone(config)]
    if config.get("data.path"):
        without.append("data.root")  # which data it is says the path; without one, the root does
    below = tuple(f"{one}." for one in without)
    found = {key: value for key, value in config.items() if not f"{key}.".startswith(below)}
    if not found.get("callbacks", True):
        del found["callbacks"]  # none: the same as some that only watch
    return found


def _watching(config: Mapping[str, Any]) -> list[str]:
    """callbacks.NAME of those that only watch."""
    targets = {key.rpartition(".")[0]: str(value) for key, value in config.items() if key.endswith("._target_")}
    return [
        key
        for key, target in targets.items()
        if key.startswith("callbacks.")
        and target.startswith("lightning.pytorch.callbacks.")
        and target.rpartition(".")[2] in _WATCHING
    ]


def gone(config: Mapping[str, Any]) -> list[str]:
    """The keys of a flat configuration that are of an earlier version, in which they changed nothing."""
    ours = config.get("data._target_") == "fedmuon.data.image_data"  # a data set of one's own may have such a key
    return [key for key in ("trainer.devices", *["data.labels"] * ours) if key in config]


def among(key: str, keys: Iterable[str]) -> bool:
    """Whether a dotted key is one of some keys, or below one."""
    return any(key == one or key.startswith(f"{one}.") for one in keys)


def flat(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every leaf of nested mappings; lists are values."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value
