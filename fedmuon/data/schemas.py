"""Schemas of the groups `partition` and `sampler`: types and ranges, as in `fedmuon.config`; values are in `conf/`."""

from __future__ import annotations

from dataclasses import dataclass
from os.path import expanduser
from pathlib import Path
from typing import Any

from fedmuon.constraints import bounded, choice
from fedmuon.errors import UsageError, where

_SKEW = "0.1 is strong label skew, 100 nearly none; use partition=iid for none"


@dataclass(frozen=True)
class Partition:
    """`partition`: `_target_` divides the training samples among the clients."""

    _target_: str
    seed: int = bounded(0, low=0)
    min_size: int = bounded(1, low=0, hint="0 allows clients without samples")


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Classes of a client from a Dirichlet distribution (arXiv 1909.06335); smaller concentrations are more skewed."""

    concentration: float = bounded(0.1, low=0, open=True, hint=_SKEW)
    prior: str = choice("flat", "flat", "classes")


@dataclass(frozen=True)
class DirichletClasses(Partition):
    """Clients of a class from a Dirichlet distribution, sizes vary (arXiv 1905.12022, 2102.02079)."""

    concentration: float = bounded(0.5, low=0, open=True, hint=_SKEW)
    capped: bool = True


@dataclass(frozen=True)
class Shards(Partition):
    classes_per_client: int = bounded(2, low=1)


@dataclass(frozen=True)
class LabelDisjoint(Partition):
    label_groups: int | None = bounded(None, low=1)


@dataclass(frozen=True)
class Quantity(Partition):
    sigma: float = bounded(1.0, low=0, hint="0 gives equal sizes")


@dataclass(frozen=True)
class FeatureShift(Partition):
    noise: float = bounded(0.1, low=0, hint="0 adds none")
    rotation: float = bounded(0.0, low=0, high=180, hint="in degrees; 0 turns nothing")


@dataclass(frozen=True)
class Natural(Partition):
    merge: bool = False


@dataclass(frozen=True)
class ListsFile(Partition):
    """`partition=file`: the clients' lists are read from `path`."""

    min_size: int = bounded(0, low=0)
    path: str | None = None

    def __post_init__(self) -> None:
        _name_file(self, "partition")


@dataclass(frozen=True)
class Sampler:
    """`sampler`: `_target_` gives the cohort of a round, a pure function of (seed, round)."""

    _target_: str


@dataclass(frozen=True)
class Schedule(Sampler):
    """`sampler=fixed`: the cohorts are read from `path`."""

    path: str | None = None
    repeat: bool = False

    def __post_init__(self) -> None:
        _name_file(self, "sampler")


@dataclass(frozen=True)
class Published(Sampler):
    legacy_seed: int = bounded(42, low=0, high=2**32 - 1)


@dataclass(frozen=True)
class Availability(Sampler):
    probability: float = bounded(0.5, low=0, high=1)
    path: str | None = None
    repeat: bool = False

    def __post_init__(self) -> None:
        if self.path is not None:
            _name_file(self, "sampler")


def _name_file(node: ListsFile | Schedule | Availability, group: str) -> None:
    """Refuse a path that names none; ~ is one's home. Whether there is such a file, `check_file` tells."""
    if not node.path:
        raise UsageError(
            f"{group}.path={'null' if node.path is None else node.path}: names no file, and {group}= needs one; "
            f"name an .npz or a .json, as in {group}.path=FILE.npz"
        )
    object.__setattr__(node, "path", str(Path(expanduser(node.path))))


def check_file(node: Any, group: str) -> None:
    """Raise UsageError where the file that a node of the group names is not there."""
    if isinstance(node, ListsFile | Schedule | Availability) and node.path and not Path(node.path).is_file():
        raise UsageError(f"{group}.path={node.path}: there is no such file{where(node.path)}; name an .npz or a .json")


PARTITIONS_AND_SAMPLERS: dict[str, type] = {
    "fedmuon.data.cohort.availability": Availability,
    "fedmuon.data.cohort.fixed": Schedule,
    "fedmuon.data.cohort.published": Published,
    "fedmuon.data.cohort.uniform": Sampler,
    "fedmuon.data.cohort.weighted": Sampler,
    "fedmuon.data.partitions.dirichlet": Dirichlet,
    "fedmuon.data.partitions.dirichlet_classes": DirichletClasses,
    "fedmuon.data.partitions.feature_shift": FeatureShift,
    "fedmuon.data.partitions.from_file": ListsFile,
    "fedmuon.data.partitions.iid": Partition,
    "fedmuon.data.partitions.label_disjoint": LabelDisjoint,
    "fedmuon.data.partitions.natural": Natural,
    "fedmuon.data.partitions.quantity": Quantity,
    "fedmuon.data.partitions.shards": Shards,
}
