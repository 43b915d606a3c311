"""The page: one HTML file with its data, style, scripts and plotly.js inside, and nothing from a network."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

SCRIPTS = ("dom.js", "charts.js", "table.js", "settings.js", "details.js", "main.js")


def page(content: Mapping[str, Any]) -> str:
    """The whole page of what `fedmuon.report.content.content` found."""
    scripts = "\n".join(_asset(name) for name in SCRIPTS)
    parts = {
        "title": escape(f"{content['title']}: fedmuon"),
        "css": _asset("page.css"),
        "data": as_json(content),
        "plotly": _plotly(),
        "js": f'"use strict";\n(() => {{\n{scripts}\n}})();',
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("page.html"))


def as_json(content: Mapping[str, Any]) -> str:
    """JSON that can stand inside a script element: no "<" ends it."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


@cache
def _asset(name: str) -> str:
    return (files("fedmuon.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def _plotly() -> str:
    """plotly.js of the installed plotly, compressed: a third of its size."""
    script = (files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    return b64encode(gzip.compress(script, 9, mtime=0)).decode()
