"""The tables of docs/reproduction.md, made from results/: between two marks of the page everything is generated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from fedmuon import rundir
from fedmuon.errors import UsageError
from fedmuon.paper import figures, record, render, rows
from fedmuon.paper.tables import PROTOCOLS, Setting, Sweep, Table, chosen, sweep, tables

_MARK = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def write(page: Path, results: Path) -> Path:
    """Replace what stands between `<!-- name -->` and `<!-- end -->`; the page."""
    rundir.write(page, generated(page.read_text(encoding="utf-8"), results))
    return page


def generated(text: str, results: Path) -> str:
    """The page with its tables as results/ has them. Names: trials, sources, and TABLE or TABLE_quick."""
    return _MARK.sub(lambda found: f"{found[1]}{_part(found[2], results)}\n{found[3]}", text)


def _part(name: str, results: Path) -> str:
    if name == "trials":
        return render.markdown(
            [
                {
                    "method and setting": one["setting"],
                    "final % [T]": f"{one['measured']:g}",
                    "published %": "-" if one["published"] is None else f"{one['published']:g}",
                }
                for one in figures.content()["trials"]
            ]
        )
    if name == "sources":
        return "\n".join(f"* [{letter}] {text}" for letter, text in figures.sources().items())
    table, quick = name.removesuffix("_quick"), name.endswith("_quick")
    if table not in tables():
        raise UsageError(f"<!-- {name} -->: there is no such table; allowed: {', '.join(tables())}")
    return "\n\n".join(_table(tables()[table], quick, results))


def _table(table: Table, quick: bool, results: Path) -> Iterator[str]:
    found = record.read(record.path_of(table.name, quick, results))
    sweeps = list(_sweeps(table, quick, found))
    yield render.markdown(rows.lines(sweeps, found))
    yield from rows.notes(sweeps, found)
    if found:
        runs = [run for cell in found["cells"] for run in cell["runs"]]
        commits = ", ".join(dict.fromkeys(run["commit"] for run in runs))
        yield f"`{found['command']}`; {len(runs)} runs, commit {commits}, torch {found['versions']['torch']}."
    else:
        yield f"Not run yet; the command is `python scripts/reproduce.py --table {table.name}`."


def _sweeps(table: Table, quick: bool, found: dict) -> Iterator[Sweep]:
    """Those that run unasked, and those that were."""
    there = {(cell["protocol"], cell["group"]) for cell in found.get("cells", [])}
    setting = Setting(quick=quick, lists="LISTS")
    for protocol in PROTOCOLS:
        for group in chosen(table, protocol):
            shown = protocol in group.default or (protocol, group.name) in there
            if shown and not (quick and group.quick is None):
                yield sweep(table, group, protocol, setting)
