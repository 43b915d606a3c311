"""The comparison as Markdown, LaTeX (booktabs) and CSV, from the rows that the page shows."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from typing import Any

from fedmuon.report.content import is_share
from fedmuon.report.markdown import table
from fedmuon.report.results import Metric
from fedmuon.report.rows import Row, machines
from fedmuon.report.statistics import Spread


def markdown(rows: Sequence[Row], metric: Metric, targets: Sequence[float]) -> str:
    """A pipe table and a line on what its marks mean."""
    head, body = _cells(rows, metric, targets)
    marks = ["---"] + ["--:"] * (len(head) - 2) + ["---"]
    return f"{table(head, body, marks)}\n\n{_note(rows, metric)}\n"


def latex(rows: Sequence[Row], metric: Metric, targets: Sequence[float]) -> str:
    r"""A tabular for \usepackage{booktabs}, to be put into a table environment."""
    head, body = _cells(rows, metric, targets)
    lines = [" & ".join(in_latex(cell) for cell in line) + r" \\" for line in (head, *body)]
    columns = "l" + "r" * (len(head) - 2) + "l"
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            f"\\begin{{tabular}}{{{columns}}}",
            "\\toprule",
            lines[0],
            "\\midrule",
            *lines[1:],
            "\\bottomrule",
            "\\end{tabular}",
            f"% {_note(rows, metric)}".replace("\n", " "),
            "",
        ]
    )


def comma_separated(rows: Sequence[Row], metric: Metric, targets: Sequence[float]) -> str:
    """Every figure in full, one row a group; empty where there is none."""
    records = [_record(row, metric, targets) for row in rows]
    names = list(dict.fromkeys(name for record in records for name in record))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


FORMATS: dict[str, Callable[[Sequence[Row], Metric, Sequence[float]], str]] = {
    "md": markdown,
    "tex": latex,
    "csv": comma_separated,
}


def _cells(rows: Sequence[Row], metric: Metric, targets: Sequence[float]) -> tuple[list[str], list[list[str]]]:
    """Head and body, unescaped."""
    form = (lambda v: f"{100 * v:.1f}") if is_share(metric.name) else (lambda v: f"{v:.4g}")
    unit = " (%)" if is_share(metric.name) else ""
    head = ["method", f"{metric.name}{unit}, last round", "best by validation"]
    for target in targets:
        name = f"{100 * target:g} %" if is_share(metric.name) else f"{target:g}"
        head += [f"rounds to {name}", f"MB to {name}", f"s to {name}", f"speed-up to {name}"]
    head += ["MB up a round", "MB down", "parameters", "runs"]
    body = []
    for row in rows:
        sign = {"better": " ▲", "worse": " ▼"}.get(row.mark, "")
        line = [row.group.label, _spread(row.last, form) + row.some(row.last) + sign]
        line.append(_spread(row.best, form) + row.some(row.best))
        for target in targets:
            effort = row.efforts[target]
            for found in (effort.rounds, effort.megabytes, effort.seconds):
                line.append(_number(found.mean) + row.some(found))
            line.append(f"{_number(effort.speed_up, 2)} ×" if math.isfinite(effort.speed_up) else "–")
        parameters = f"{row.parameters:,}" if isinstance(row.parameters, int) else "–"
        line += [*map(_number, row.payload), parameters, row.status + (", so far" if row.group.so_far else "")]
        body.append(line)
    return head, body


def _spread(found: Spread, form: Callable[[float], str]) -> str:
    if not found.seeds:
        return "–"
    return form(found.mean) + (f" ± {form(found.deviation)}" if found.seeds > 1 else "")


def _number(value: float, digits: int = 3) -> str:
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def _note(rows: Sequence[Row], metric: Metric) -> str:
    note = (
        f"Mean ± sample deviation of the {metric.title} over seeds: in the last round, and in the round with the "
        f"best validation {metric.name}."
    )
    if any(row.mark for row in rows):
        note += (
            " ▲, ▼: better, worse than the reference at 5 % in a paired t-test over common seeds, adjusted after Holm."
        )
    if any(row.efforts for row in rows) and len(places := machines(rows)) > 1:
        note += f" Seconds are of different machines: {'; '.join(places)}."
    return note


_TEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_"},
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "→": r"$\to$",
    "–": "--",
    "▲": r"$\blacktriangle$",
    "▼": r"$\blacktriangledown$",
}


def in_latex(text: str) -> str:
    """Text with its special signs escaped."""
    return "".join(_TEX.get(sign, sign) for sign in text)


def _record(row: Row, metric: Metric, targets: Sequence[float]) -> dict[str, Any]:
    found: dict[str, Any] = {"group": row.group.label, **row.group.settings, "seeds": row.last.seeds}
    for name, spread in ((f"last_{metric.name}", row.last), (f"best_{metric.name}", row.best)):
        found |= {name: spread.mean, f"{name}_deviation": spread.deviation}
    found |= {"reference": row.against.label if row.against else ""}
    found |= {"difference": row.test[0].difference, "p": row.test[0].p, "p_adjusted": row.test[1]} if row.test else {}
    for target in targets:
        effort = row.efforts[target]
        found |= {
            f"rounds_to_{target:g}": effort.rounds.mean,
            f"megabytes_to_{target:g}": effort.megabytes.mean,
            f"seconds_to_{target:g}": effort.seconds.mean,
            f"seeds_that_reach_{target:g}": effort.rounds.seeds,
            f"speed_up_to_{target:g}": effort.speed_up,
        }
    up, down = row.payload
    found |= {"megabytes_up": up, "megabytes_down": down, "parameters": row.parameters, "runs": row.status}
    return {
        name: "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value
        for name, value in found.items()
    }
