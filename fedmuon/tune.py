"""`fedmuon-tune algorithm=fedmuon n_trials=40`: search an algorithm's constants on the validation split.

Every trial is an ordinary run directory in the tune folder; the study beside them (SQLite) survives a kill: started
again, the same command goes on with the trial that was cut off. The budget is a number of trials, the same for every
algorithm.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import expanduser
from pathlib import Path
from typing import Any

from fedmuon import VERSION, rundir, space
from fedmuon.apart import APART, among
from fedmuon.command import AGAIN, Parser, command
from fedmuon.compose import Composer
from fedmuon.errors import UsageError, nearest, shown
from fedmuon.job import Job, checked_job, digest
from fedmuon.overrides import fixed_keys, keyed
from fedmuon.space import Range

_HELP = """keys of the search
  n_trials=40      trials of each algorithm
  algorithm=a,b    the same budget for each
  tune_dir=DIR     where the runs and study.db are kept (default: outputs/tune-<digest of the command>)
  tune_seed=0      of the sampler
  prune=true       give up trials that are worse than the median of the others in the same round
  space=FILE.yaml  what is searched, instead of conf/tune/ALGORITHM.yaml: KEY: {low, high, log} or {values: [...]}
every other KEY=VALUE is handed on to the runs, and what it sets is not searched"""
_DEFAULTS = {"n_trials": "40", "algorithm": "fedmuon", "tune_dir": "", "tune_seed": "0", "prune": "true", "space": ""}
_MISSING = object()


@dataclass(frozen=True)
class Search:
    """One algorithm's search, checked.  space: what is searched;  start: its parameters in the configuration itself."""

    algorithm: str
    overrides: tuple[str, ...]
    space: Mapping[str, Range]
    start: Mapping[str, Any]
    folder: Path
    composer: Composer

    def job(self, values: Mapping[str, str]) -> Job:
        """The run of some values of the space."""
        fixed = [f"algorithm={self.algorithm}", *self.overrides]
        told = fixed_keys(self.composer.parse(fixed))
        given = [*fixed, *(f"{key}={value}" for key, value in values.items())]
        return checked_job(self.composer.compose([*given, told]), self.folder)

    def command(self, values: Mapping[str, str]) -> str:
        words = [f"algorithm={self.algorithm}", *self.overrides, *(f"{key}={value}" for key, value in values.items())]
        own = ["--config-dir", self.composer.config_dir] if self.composer.config_dir else []
        return " ".join(["fedmuon", *map(shlex.quote, [*own, *words])])


@dataclass(frozen=True)
class Request:
    """A checked command."""

    searches: tuple[Search, ...]
    n_trials: int
    seed: int
    prune: bool
    folder: Path


@command("fedmuon-tune")
def main() -> None:
    """Entry point. Exit codes: 0 done, 1 a fault, or an algorithm without a trial, 2 wrong input, 130 interrupted."""
    parser = Parser(
        prog="fedmuon-tune", description=__doc__, epilog=_HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("-cd", "--config-dir", metavar="DIR", help="a folder with groups of your own, tune/ among them")
    parser.add_argument("--version", action="version", version=VERSION)
    args = parser.parse_intermixed_args()
    request = read(args.overrides, args.config_dir)
    try:
        from fedmuon.searching import tune
    except ImportError as error:
        raise UsageError(f"{error}: the search needs Optuna; run: pip install 'fedmuon[tune]'") from error
    try:
        sys.exit(tune(request))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(AGAIN) from None


def read(words: Sequence[str], config_dir: str | None = None) -> Request:
    """Check a command, to the ends of every range, before anything runs. Raises UsageError."""
    own, overrides = dict(_DEFAULTS), []
    for word in words:
        key, value = keyed(word)
        if key in own:
            own[key] = value
        else:
            overrides.append(word)
    if own["prune"] not in ("true", "false"):
        raise UsageError(f"prune={own['prune']}: must be true or false")
    composer = Composer(config_dir)
    names = own["algorithm"].split(",")
    if len(set(names)) < len(names):
        raise UsageError(f"algorithm={own['algorithm']}: names one twice; leave it away")
    files = {name: space.file_of(name, own["space"], config_dir) for name in names}
    spaces = {name: space.ranges(file) for name, file in files.items()}
    searched = {name: {key: str(one) for key, one in ranges.items()} for name, ranges in spaces.items()}
    decide = sorted(one for one in overrides if not among(keyed(one)[0], APART))
    asked = [decide, own["algorithm"], own["tune_seed"], own["prune"], searched, config_dir]
    folder = Path(expanduser(own["tune_dir"] or f"outputs/tune-{digest(asked)}"))
    rundir.usable("tune_dir", folder)
    searches = tuple(_search(name, overrides, files[name], spaces[name], folder, composer) for name in names)
    n_trials, seed = (_whole(key, own[key], low) for key, low in (("n_trials", 1), ("tune_seed", 0)))
    return Request(searches, n_trials, seed, own["prune"] == "true", folder)


def _search(
    name: str, overrides: Sequence[str], file: Path, ranges: Mapping[str, Range], folder: Path, composer: Composer
) -> Search:
    keys = {keyed(one)[0] for one in overrides}
    given = keys & {"run_dir", "resume"}
    if given:
        raise UsageError(f"{', '.join(given)}: belongs to one run; trials make their own folders in tune_dir")
    if hydras := [one for one in overrides if keyed(one)[0].startswith(("hydra.", "hydra/"))]:
        raise UsageError(
            f"{hydras[0]}: is of the command fedmuon, a search has no launcher and no sweeper; leave it away "
            "(trials run one after the other, in tune_dir=)"
        )
    try:
        job = checked_job(composer.compose([f"algorithm={name}", *overrides]))
    except UsageError as error:
        unknown = next((key for key in keys if f"no key {key!r}" in str(error)), "")
        raise UsageError(f"{error}{nearest(unknown, _DEFAULTS) if unknown else ''}") from error
    if not (job.saved.data.get("validation") or 0):
        raise UsageError(
            f"data.validation={shown(job.saved.data.get('validation'))}: trials are compared on the validation split; "
            "set it above 0"
        )
    ranges = {key: one for key, one in ranges.items() if key not in keys}
    if not ranges:
        raise UsageError(
            f"{file}: nothing is left to search, the command sets all of it; name keys with space=FILE.yaml"
        )
    values = {key: _value(job.config, key) for key in ranges}
    missing = [key for key, value in values.items() if value is _MISSING]
    if missing:
        raise UsageError(f"{file}: {missing[0]}: algorithm={name} has no such key")
    ranges = {key: one.of(job, key) for key, one in ranges.items()}
    own = {key: one.of_default(values[key]) for key, one in ranges.items()}
    start = own if all(value is not None for value in own.values()) else {}
    found = Search(name, tuple(overrides), ranges, start, folder, composer)
    for key, one in ranges.items():
        for end in one.ends():
            found.job({key: end})
    return found


def _value(config: Any, key: str) -> Any:
    """The value of a dotted key, listed in a YAML or a field's default."""
    for part in key.split("."):
        values = config if isinstance(config, Mapping) else getattr(config, "__dict__", {})
        config = values.get(part, _MISSING)
    return config


def _whole(key: str, value: str, low: int) -> int:
    if not value.isdecimal() or int(value) < low:
        raise UsageError(f"{key}={value}: must be a whole number, at least {low}")
    return int(value)


if __name__ == "__main__":
    main()
