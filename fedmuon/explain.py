"""Hydra's and OmegaConf's errors as one line: what was given, what is allowed, what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hydra.errors import MissingConfigException
from omegaconf.errors import MissingMandatoryValue
from yaml import YAMLError

from fedmuon.errors import nearest

_PLUGINS = {
    ("hydra/launcher", "joblib"): "hydra-joblib-launcher",
    ("hydra/launcher", "submitit_local"): "hydra-submitit-launcher",
    ("hydra/launcher", "submitit_slurm"): "hydra-submitit-launcher",
}


def explained(error: Exception, overrides: Sequence[str]) -> str:
    """The line for an error that arose from `overrides`; its own text on one line where nothing is known of it."""
    text = str(error)
    key = re.search(r"full_key: (\S+)", text)

    def given(pattern: str) -> str:
        """The override that a pattern finds."""
        return next((one for one in overrides if re.search(pattern, one)), "")

    def named(pattern: str) -> str:
        """The override that a pattern finds, else the key of a file that the error names."""
        return given(pattern) or (key[1] if key else " ".join(overrides))

    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, option = error.missing_cfg_file.rpartition("/")
        options = sorted(error.options)
        if package := _PLUGINS.get((group, option)):
            return f"{group}={option}: needs {package}; run: pip install 'fedmuon[sweeps]'"
        return f"{group}={option}: no such option{nearest(option, options)}; allowed: {', '.join(options)}"
    if found := re.search(r"Error parsing override '(.*)'", text):
        return f"{found[1]}: is no override; write key=value or group=option, values with special signs in quotes"
    if found := re.search(r"Ambiguous value for argument '(.*)'|Sweep parameters '(.*)' requires", text):
        swept = found[1] or found[2]
        return f"{swept}: is a sweep over several values; run it with fedmuon -m, or write a list as key=[a,b]"
    if (found := re.search(r"Multiple values for ([^.]+)", text)) and (one := given(rf"^\+{found[1]}=")):
        return f"{one}: {found[1]} has its place already; write {one.lstrip('+')}"
    if found := re.search(r"Missing mandatory value: (\S+)", text):
        missing = key[1] if key and isinstance(error, MissingMandatoryValue) else found[1]
        return f"{missing}: must be given; write {missing}=VALUE"
    if "HydraConfig was not set" in text:
        where = named(r"hydra\\?:")
        return f"{where}: has no value here; paths are those of the current folder already, leave ${{hydra:...}} away"
    if "Config group override must be a string or a list" in text:
        where = named(r"=(null|\d*|true|false)$")
        return f"{where}: must name an option; write key=value, or group=option; fedmuon --help lists the options"
    if found := re.search(r"node `(\w+)` is not a container", text):
        return f"{named(f'^{found[1]}=')}: is a group of keys, not a value; write {found[1]}.KEY=VALUE"
    if found := re.search(r"Environment variable '(.*)' not found", text):
        name = found[1]
        where = named(name)
        return f"{where}: {name} is not set in the environment; set it, or write ${{oc.env:{name},VALUE}}"
    if found := re.search(r"Unsupported interpolation type (\w+)", text):
        where = named(found[1])
        return f"{where}: there is no resolver {found[1]!r}; write a value, or ${{KEY}} for that of a key"
    if found := re.search(r"Error merging override (.*)", text):
        cause = str(error.__cause__ or "").split("\n")[0].replace("of type 'str' ", "")
        return f"{found[1]}: {cause or 'does not fit its key'}"
    if taken := next((o for o in overrides if o.startswith("~") and "nterpolation" in text), None):
        return f"{taken}: cannot be taken away, other keys take values from it; give another option or value instead"
    if found := re.search(r"Interpolation key '(.*)' not found", text):
        return f"{named(re.escape(found[1]))}: there is no key {found[1]!r} to take the value from"
    if "LexerNoViableAlt" in text:
        return f"{' '.join(overrides)}: is no override; write key=value or group=option"
    if key:
        return f"{named(f'^[+]*{re.escape(key[1])}=')}: {text.split(chr(10))[0]}"
    return " ".join(text.split())


def no_yaml(error: YAMLError | UnicodeDecodeError, config_dir: str | None) -> str:
    """The line for a file of one's own that cannot be read. Which one holds no text, Python does not say."""
    if isinstance(error, UnicodeDecodeError):
        files = sorted(Path(config_dir or ".").rglob("*.yaml"))
        return f"{next(filter(_no_text, files), config_dir)}: is no text in UTF-8; save it as such"
    mark = getattr(error, "problem_mark", None)
    where = f"{mark.name}:{mark.line + 1}" if mark else getattr(error, "name", config_dir)
    return f"{where}: is no YAML ({getattr(error, 'problem', None) or error}); correct it"


def _no_text(file: Path) -> bool:
    try:
        file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return True
    return False
