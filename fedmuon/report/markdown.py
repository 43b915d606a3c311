"""Tables in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], body: Iterable[Sequence[str]], marks: Sequence[str] = ()) -> str:
    """A pipe table, without a line break at its end; cells are plain text.

    marks  below the head, one a column: --- or, of figures, --: ; without them it is a bare |---|---|
    """
    rule = _line(marks) if marks else f"|{'---|' * len(head)}"
    first, *others = [_line([_cell(text) for text in line]) for line in (head, *body)]
    return "\n".join([first, rule, *others])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    """Escaped. A < begins a tag only before some signs: the arrow <- stays readable in the source."""
    return re.sub("<(?=[A-Za-z/!?])", "&lt;", text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " "))
