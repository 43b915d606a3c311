"""What `fedmuon-tune` searches: ranges of keys, from conf/tune/ALGORITHM.yaml or a file of one's own. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass, replace
from os.path import expanduser
from pathlib import Path
from typing import Any, get_args, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from fedmuon.config import CONF
from fedmuon.errors import UsageError, shown
from fedmuon.job import Job


@dataclass(frozen=True)
class Range:
    """Values of one key: `values`, or what lies from `low` to `high`, evenly or evenly in its logarithm.

    Between two whole numbers lie whole numbers, unless the key takes any (`of`).
    """

    low: float = 0.0
    high: float = 0.0
    log: bool = False
    values: tuple[Any, ...] = ()

    def of(self, job: Job, key: str) -> Range:
        """The range as that of a key of a job."""
        fractions = not self.values and _takes_fractions(job, key)
        return replace(self, low=float(self.low), high=float(self.high)) if fractions else self

    def suggest(self, trial: Any, key: str) -> str:
        """A value of an Optuna trial, as an override writes it: numbers with four digits."""
        if self.values:
            return shown(self.values[trial.suggest_categorical(key, list(range(len(self.values))))])
        if isinstance(self.low, int) and isinstance(self.high, int):
            return str(trial.suggest_int(key, self.low, self.high, log=self.log))
        text = f"{trial.suggest_float(key, self.low, self.high, log=self.log):.4g}"
        return text if self.low <= float(text) <= self.high else shown(min(max(float(text), self.low), self.high))

    def of_default(self, value: Any) -> Any:
        """The parameter that stands for a configuration's own value; None where it is outside."""
        if self.values:
            return self.values.index(value) if value in self.values else None
        return value if isinstance(value, int | float) and self.low <= value <= self.high else None

    def ends(self) -> list[str]:
        return [shown(value) for value in self.values or (self.low, self.high)]

    def __str__(self) -> str:
        return f"[{','.join(self.ends())}]" if self.values else f"{' to '.join(self.ends())}{' (log)' * self.log}"


def _takes_fractions(job: Job, key: str) -> bool:
    *path, leaf = key.split(".")
    node: Any = job.config
    for part in path:
        node = node.get(part) if isinstance(node, Mapping) else getattr(node, part, None)
    kind = get_type_hints(type(node)).get(leaf) if is_dataclass(node) else None
    kinds = {kind, *get_args(kind)}
    return (float in kinds and int not in kinds) or isinstance(OmegaConf.select(job.saved, key), float)


def file_of(algorithm: str, space: str, config_dir: str | None) -> Path:
    """The file that says what is searched: `space`; else the algorithm's, in a user's folder or here; else default."""
    if space:
        return Path(expanduser(space))
    folders = [*([Path(config_dir)] if config_dir else []), CONF]
    files = [folder / "tune" / f"{option}.yaml" for option in (algorithm, "default") for folder in folders]
    return next(file for file in files if file.exists())


def ranges(file: Path) -> dict[str, Range]:
    """The ranges of a file by key. Raises UsageError for what is none."""
    try:
        content = OmegaConf.to_container(OmegaConf.load(file))
    except OSError as error:
        raise UsageError(f"space={file}: cannot be read ({error.strerror}); name a YAML file") from error
    except (YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: is no YAML ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict) or not content:
        raise UsageError(f"{file}: must hold keys, as in local.lr: {{low: 0.01, high: 1.0, log: true}}")
    return {str(key): _range(file, str(key), node) for key, node in content.items()}


def _range(file: Path, key: str, node: Any) -> Range:
    wrong = UsageError(f"{file}: {key}: {node} must be {{low: NUMBER, high: NUMBER, log: true}} or {{values: [a, b]}}")
    if not isinstance(node, dict) or not (
        {"low", "high"} <= set(node) <= {"low", "high", "log"} or set(node) == {"values"}
    ):
        raise wrong
    if "values" in node:
        values = node["values"]
        if not isinstance(values, list) or not values:
            raise wrong
        return Range(values=tuple(values))
    low, high, log = node.get("low"), node.get("high"), node.get("log", False)
    if not (isinstance(low, int | float) and isinstance(high, int | float) and low < high):
        raise wrong
    if not isinstance(log, bool) or (log and low <= 0):
        raise wrong
    return Range(low, high, log)
