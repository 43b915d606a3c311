"""Hydra's and OmegaConf's errors as one line: what was given, what is allowed, what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hydra.errors import MissingConfigException

from fedmuon.errors import nearest


def explained(error: Exception, overrides: Sequence[str]) -> str:
    """The line for an error that arose from `overrides`; its own text on one line where nothing is known of it."""
    text = str(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, option = error.missing_cfg_file.rpartition("/")
        options = sorted(error.options)
        return f"{group}={option}: no such option{nearest(option, options)}; allowed: {', '.join(options)}"
    if found := re.search(r"Error parsing override '(.*)'", text):
        return f"{found[1]}: is no override; write key=value or group=option, values with special signs in quotes"
    if found := re.search(r"Ambiguous value for argument '(.*)'", text):
        return f"{found[1]}: is a sweep over several values; run it with fedmuon -m, or write a list as key=[a,b]"
    if "Config group override must be a string or a list" in text:
        given = _given(overrides, r"=(null|\d*|true|false)$")
        return f"{given}: must name an option; write key=value, or group=option; fedmuon --help lists the options"
    if found := re.search(r"node `(\w+)` is not a container", text):
        return f"{_given(overrides, f'^{found[1]}=')}: is a group of keys, not a value; write {found[1]}.KEY=VALUE"
    if found := re.search(r"Interpolation key '(.*)' not found", text):
        return f"{_given(overrides, re.escape(found[1]))}: there is no key {found[1]!r} to take the value from"
    if "LexerNoViableAlt" in text:
        return f"{' '.join(overrides)}: is no override; write key=value or group=option"
    return " ".join(text.split())


def _given(overrides: Sequence[str], pattern: str) -> str:
    """The override that a pattern finds."""
    return next((one for one in overrides if re.search(pattern, one)), " ".join(overrides))
