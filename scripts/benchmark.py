"""Benchmarks, each a table: `python scripts/benchmark.py --workload mlp --threads 2 --markdown`.

Engines against plain loops (mlp, pfl_cnn, lenet5, resnet18, vit_tiny), what a round costs beside training (overhead,
population), and the polar factor (polar). To add a workload: write a function `(arguments) -> Table` in a file of
`scripts/benchmarks` and name it in WORKLOADS at the end; printing and `--json` are shared.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmarks.polar import polar_factor
from benchmarks.rounds import overhead, population
from benchmarks.table import Table, machine
from benchmarks.training import WORKLOADS as TRAINING
from benchmarks.training import training
from rich import box
from rich.table import Table as RichTable

from fedmuon.compose import Composer
from fedmuon.console import console
from fedmuon.errors import UsageError
from fedmuon.job import checked_job
from fedmuon.report import markdown


def cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.1e}" if value != 0 and abs(value) < 1e-2 else f"{value:.4g}"
    return str(value)


def as_markdown(table: Table) -> str:
    first = table.rows[0]
    marks = ["---:" if isinstance(value, int | float) else "---" for value in first.values()]
    return markdown.table(list(first), ([cell(value) for value in row.values()] for row in table.rows), marks)


def as_rich(table: Table) -> RichTable:
    rich = RichTable(title=table.title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for key, value in table.rows[0].items():
        rich.add_column(key, justify="right" if isinstance(value, int | float) else "left", no_wrap=True)
    for row in table.rows:
        rich.add_row(*map(cell, row.values()))
    return rich


WORKLOADS: dict[str, Callable[[argparse.Namespace], Table]] = {
    "polar": polar_factor,
    "overhead": overhead,
    "population": population,
    **{name: partial(training, name) for name in TRAINING},
}
ON_CPU = ("overhead", "population")  # what the host does


def count(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number, at least 1")
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description="Benchmarks of fedmuon, with the machine they ran on.")
    parser.add_argument("--workload", choices=sorted(WORKLOADS), required=True)
    parser.add_argument("--threads", type=count, default=1, help="threads of torch (default 1)")
    parser.add_argument("--repeats", type=count, default=20, help="timed turns of every row (default 20)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--engines", default="sequential,stacked,auto", metavar="A,B:KEY=VALUE+KEY=VALUE",
                        help="engines that are measured, with options (default sequential,stacked,auto)")  # fmt: skip
    parser.add_argument("--rounds", type=count, default=2, help="rounds of a turn (default 2)")
    for size in ("cohort", "batch", "steps"):
        parser.add_argument(f"--{size}", type=count, help=f"{size} of a training workload, instead of its own")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write rows and machine to FILE")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: there is none here; use --device cpu")
    if arguments.device == "cuda" and arguments.workload in ON_CPU:
        parser.error(f"--workload {arguments.workload}: is measured on a CPU; leave --device cuda away")
    if arguments.json and not arguments.json.absolute().parent.is_dir():
        parser.error(f"--json {arguments.json}: there is no folder {arguments.json.parent}; name a file in one")
    for engine in arguments.engines.split(","):
        name, _, options = engine.partition(":")
        try:
            checked_job(Composer().compose([f"engine={name}", *filter(None, options.split("+"))]))
        except UsageError as error:
            parser.error(f"--engines {engine}: {error}")

    torch.set_num_threads(arguments.threads)
    table, where = WORKLOADS[arguments.workload](arguments), machine(arguments.threads, arguments.device)
    if arguments.markdown:
        print(f"{as_markdown(table)}\n\n{table.note}\n\nMachine: {where}.")
    else:
        screen = console()
        screen.width = max(120, screen.width)  # figures wrap on a narrow terminal, and are not cut off
        screen.print(as_rich(table), table.note, f"Machine: {where}.", sep="\n")
    if arguments.json:
        document = {"workload": arguments.workload, "machine": where, "threads": arguments.threads, **asdict(table)}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
