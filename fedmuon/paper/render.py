"""A table's lines as Markdown, LaTeX (booktabs) and a small HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from fedmuon import rundir
from fedmuon.report.markdown import table
from fedmuon.report.tables import in_latex

Line = Mapping[str, str]
_STYLE = (
    "body{font:15px/1.4 system-ui,sans-serif;margin:2rem;color-scheme:light dark}table{border-collapse:collapse}"
    "td,th{padding:.3rem .7rem;border-bottom:1px solid #8886;text-align:left;vertical-align:top}"
    "div{overflow-x:auto}caption{text-align:left;font-weight:600;padding-bottom:.5rem}"
)


def markdown(lines: Sequence[Line]) -> str:
    """A GitHub table; empty for no lines."""
    if not lines:
        return ""
    names = list(lines[0])
    return table(names, ([line[name] for name in names] for line in lines), ["---"] * len(names))


def latex(title: str, lines: Sequence[Line], notes: Sequence[str]) -> str:
    """A table environment; needs the package booktabs."""
    names = list(lines[0]) if lines else []
    body = [" & ".join(in_latex(line[name]) for name in names) + r" \\" for line in lines]
    head = " & ".join(map(in_latex, names)) + r" \\"
    return "\n".join(
        [
            r"\begin{table}", r"\centering",
            rf"\caption{{{in_latex(title)}}}", rf"\begin{{tabular}}{{{'l' * len(names)}}}",
            r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", *(f"% {note}" for note in notes),
            r"\end{table}", "",
        ]
    )  # fmt: skip


def html(title: str, lines: Sequence[Line], notes: Sequence[str]) -> str:
    """One self-contained page."""
    names = list(lines[0]) if lines else []
    head = "".join(f"<th scope=col>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{escape(line[name])}</td>" for name in names) + "</tr>\n" for line in lines)
    said = "".join(f"<p>{escape(note)}</p>\n" for note in notes)
    return (
        f"<!doctype html>\n<html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style>\n<div><table><caption>{escape(title)}</caption>"
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n{said}</html>\n"
    )


def write(folder: Path, name: str, title: str, lines: Sequence[Line], notes: Sequence[str]) -> list[Path]:
    """The table in all three forms; the files that were written."""
    folder.mkdir(parents=True, exist_ok=True)
    text = f"## {title}\n\n{markdown(lines)}\n\n" + "".join(f"{note}\n\n" for note in notes)
    made = {"md": text, "tex": latex(title, lines, notes), "html": html(title, lines, notes)}
    for suffix, content in made.items():
        rundir.write(folder / f"{name}.{suffix}", content)
    return [folder / f"{name}.{suffix}" for suffix in made]
