"""Figures for a paper, SVG and PDF: curves over rounds, megabytes and seconds, bars of the results, a heat map."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from fedmuon.errors import UsageError
from fedmuon.report.palette import LIGHT, look

LINES = {"solid": "solid", "dash": "dashed", "dot": "dotted", "dashdot": "dashdot"}  # the palette's, in matplotlib
AXES = {"round": "communication round", "mb": "megabytes sent", "s": "seconds"}
STYLE: dict[Any, Any] = {
    "text.parse_math": False,  # a "$" in a name is a dollar
    "pdf.fonttype": 42,  # text stays text, as publishers ask
    "svg.hashsalt": "fedmuon",  # the same figures give the same file
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e3e6ea",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


def write_figures(content: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw what the page shows into a folder; returns the files. content: of `fedmuon.report.content.content`.

    Raises UsageError for a folder that cannot be written.
    """
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context(STYLE):
            for name, figure in _figures(content):
                for kind in ("svg", "pdf"):
                    path = folder / f"{name}.{kind}"
                    figure.savefig(path, metadata={"Date" if kind == "svg" else "CreationDate": None})
                    written.append(path)
    except OSError as error:
        raise UsageError(f"--figures {folder}: cannot be written ({error.strerror}); name another folder") from error
    return written


def _figures(content: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    for key, title in content["series"]:
        for axis in AXES:
            if any(key in curve["series"] for curve in content["curves"]):
                yield f"{key.replace('/', '_')}-{axis}", _curves(content, key, title, axis)
    if len(content["groups"]) > 1:
        yield "results", _bars(content)
    numeric = [key for key in content["keys"] if _numbers(content, key)]
    if len(numeric) == 2 and len(content["keys"]) == 2:
        yield "heat_map", _heat_map(content, *numeric)


def _curves(content: Mapping[str, Any], key: str, title: str, axis: str) -> Figure:
    figure, axes = _new(5.2, 3.4)
    for number, (group, curve) in enumerate(zip(content["groups"], content["curves"], strict=True)):
        if key not in curve["series"]:
            continue
        colour, dash = look(number)
        x, y = _floats(curve[axis]), _floats(curve["series"][key]["mean"])
        there = np.isfinite(y)
        style = {"color": LIGHT[colour], "linestyle": LINES[dash]}
        axes.plot(x[there], y[there], **style, linewidth=1.5, label=group["label"])
        if "dev" in curve["series"][key]:
            deviation = _floats(curve["series"][key]["dev"])
            axes.fill_between(
                x[there], (y - deviation)[there], (y + deviation)[there], color=LIGHT[colour], alpha=0.15, linewidth=0
            )
    axes.set(xlabel=AXES[axis], ylabel=title)
    if len(content["groups"]) <= 12:
        axes.legend(fontsize=8)
    return figure


def _bars(content: Mapping[str, Any]) -> Figure:
    groups = [(i, group) for i, group in enumerate(content["groups"]) if group["last"][0] is not None]
    figure, axes = _new(5.2, 0.9 + 0.28 * len(groups))
    values = _floats([group["last"][0] for _, group in groups])
    deviations = _floats([group["last"][1] for _, group in groups])  # NaN, of one seed, has no bar
    colours = [LIGHT[look(i)[0]] for i, _ in groups]
    axes.barh(
        [group["label"] + _some(group) for _, group in groups],
        values,
        xerr=deviations,
        color=colours,
        capsize=2,
        height=0.65,
    )
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"{content['metric']['title']}, last round")
    return figure


def _some(group: Mapping[str, Any]) -> str:
    seeds, runs = group["last"][2], len(group["runs"])
    return f" ({seeds} of {runs})" if seeds < runs else ""


def _heat_map(content: Mapping[str, Any], y: str, x: str) -> Figure:
    across, down = _numbers(content, x), _numbers(content, y)
    table = np.full((len(down), len(across)), np.nan)
    for group in content["groups"]:
        table[down.index(group["settings"][y]), across.index(group["settings"][x])] = _floats([group["last"][0]])[0]
    figure, axes = _new(1.6 + 0.7 * len(across), 1.1 + 0.45 * len(down))
    picture = axes.imshow(table, cmap="cividis", aspect="auto")
    axes.grid(visible=False)
    axes.set_xticks(range(len(across)), [f"{value:g}" for value in across])
    axes.set_yticks(range(len(down)), [f"{value:g}" for value in down])
    axes.set(xlabel=x, ylabel=y)
    middle = (np.nanmin(table) + np.nanmax(table)) / 2
    scale = 100 if content["metric"]["percent"] else 1
    for (i, j), value in np.ndenumerate(table):
        if np.isfinite(value):
            axes.text(j, i, f"{scale * value:.3g}", ha="center", va="center", color="k" if value > middle else "w")
    figure.colorbar(picture, label=content["metric"]["title"])
    return figure


def _numbers(content: Mapping[str, Any], key: str) -> list[float]:
    """The values of a setting in ascending order; none where one is missing or no number."""
    values = [group["settings"].get(key) for group in content["groups"]]
    fits = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return sorted(set(values)) if fits else []


def _new(width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height))  # without pyplot: no window, no global state
    return figure, figure.subplots()


def _floats(values: Sequence[Any]) -> np.ndarray:
    return np.array(values, float)
