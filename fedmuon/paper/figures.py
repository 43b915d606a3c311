"""What was published: accuracies and rounds to targets with their sources, from figures.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

CLOSE = 1.5  # points: README and figures of the authors differ by up to 1.6


@dataclass(frozen=True)
class Figure:
    """A published accuracy in per cent, its deviation where one is given, and the letter of its source."""

    value: float
    deviation: float | None
    source: str


@cache
def content() -> dict[str, Any]:
    return yaml.safe_load(Path(__file__).with_name("figures.yaml").read_text(encoding="utf-8"))


def accuracy(table: str, group: str, method: str) -> Figure | None:
    """The published accuracy of a cell; None where nothing is published for it."""
    groups = content()["accuracy"].get(table, {})
    found = groups.get(group, groups.get("*", {})).get(method)
    return Figure(*found) if found else None


def rounds_to(table: str, group: str, method: str) -> dict[float, int | None]:
    """First round at or above each target (per cent), None for never; empty where nothing is published."""
    node = content()["rounds"].get(table, {}).get(group, {})
    return dict(zip(node["targets"], node[method], strict=True)) if method in node else {}


def sources() -> dict[str, str]:
    """What the letters stand for."""
    return dict(content()["sources"])
