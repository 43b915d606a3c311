"""The report from Python: a page, a table, figures of the runs in and below some folders."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from fedmuon import rundir
from fedmuon.errors import UsageError
from fedmuon.report.compare import baseline_of, groups
from fedmuon.report.content import content, title_of
from fedmuon.report.results import metric_of
from fedmuon.report.rows import rows, shown_target, targets_of
from fedmuon.report.runs import RunData, read_runs
from fedmuon.report.tables import FORMATS

Folders = str | Path | Sequence[str | Path]


def write_page(folders: Folders, output: str | Path = "report.html", **options: Any) -> Path:
    """Write the HTML page that compares runs; returns its path. output: a file, "-" prints it.

    options: title, metric, targets, baseline as of `fedmuon.report.content.content`. Raises UsageError for folders
    without runs and for an output that cannot be written.
    """
    from fedmuon.report.page import page

    path = place(Path(output))
    replace(path, page(described(folders, **options)))
    return path


def write_figures(folders: Folders, output: str | Path, **options: Any) -> list[Path]:
    """Draw the same as SVG and PDF into a folder; returns the files. Options and errors as of `write_page`."""
    from fedmuon.report import figures

    return figures.write_figures(described(folders, **options), Path(output))


def table(folders: Folders, form: str = "md", **options: Any) -> str:
    """The comparison as text: "md", "tex" or "csv". options: metric, targets, baseline."""
    runs, _ = read_runs(_paths(folders))
    return table_of(runs, form, **options)


def table_of(
    runs: Sequence[RunData],
    form: str,
    metric: str | None = None,
    targets: Sequence[float] = (),
    baseline: str | None = None,
) -> str:
    """`table` of runs that are read already."""
    chosen, baseline = metric_of(runs, metric), baseline_of(runs, baseline)
    aims = targets_of(runs, chosen, targets)
    lines = rows(groups(runs), chosen, aims, baseline)
    if not targets and form != "csv" and aims:  # has room for all of them; a table for one, unless more are asked for
        aims = [aim for aim in aims if aim == shown_target(lines, aims)]
    return FORMATS[form](lines, chosen, aims)


def described(folders: Folders, **options: Any) -> dict[str, Any]:
    """What a page or figures show, as plain data."""
    paths = _paths(folders)
    runs, problems = read_runs(paths)
    return content(runs, problems, **{"title": title_of(paths), **options})


def place(path: Path) -> Path:
    """A file that can be written, "-" for standard output. Raises UsageError for one that cannot."""
    if _is_output(path):
        return path
    if path.is_dir() or not path.absolute().parent.is_dir():
        what = "is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise UsageError(f"--output {path}: {what}; name a file in a folder that exists")
    return path


def replace(path: Path, text: str) -> None:
    """Write a whole file, so that a reader never meets half of one; a link stays, a pipe or a device is written to.

    Raises UsageError where it cannot be written.
    """
    if _is_output(path):
        print(text, end="")
        return
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
        else:
            rundir.write(Path(os.path.realpath(path)), text)
    except OSError as error:
        raise UsageError(f"--output {path}: cannot be written ({error.strerror}); name another file") from error


def told(path: Path) -> TextIO:
    """Where a command says what it has written: on standard error where the file itself is standard output."""
    return sys.stderr if _is_output(path) else sys.stdout


def _is_output(path: Path) -> bool:
    return str(path) in ("-", "/dev/stdout", "/dev/fd/1")


def _paths(folders: Folders) -> list[Path]:
    return [Path(folders)] if isinstance(folders, str | Path) else [Path(folder) for folder in folders]
