"""Benchmarks, each a table: `python scripts/benchmark.py --workload mlp --threads 2 --markdown`.

Engines against plain loops (mlp, pfl_cnn, lenet5, resnet18, vit_tiny), what a round costs beside training (overhead,
population), and the polar factor (polar). To add a workload: write a function `(arguments) -> Table` in a file of
`scripts/benchmarks` and name it in WORKLOADS at the end; printing and `--json` are shared.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmarks.rounds import overhead, population
from benchmarks.table import Table, alternating, machine
from benchmarks.training import WORKLOADS as TRAINING
from benchmarks.training import training
from rich import box
from rich.table import Table as RichTable
from torch import Tensor

from fedmuon.compose import Composer
from fedmuon.console import console
from fedmuon.errors import UsageError
from fedmuon.job import checked_job
from fedmuon.optim.polar import _by_iteration, coefficients, each, polar

# Workload "polar": error and cost of the polar factor

SHAPES = ((64, 576), (192, 768), (120, 400), (10, 84), (16, 150), (10, 64, 576), (64, 64), (192, 192))
LOW_RANK = ((64, 576, 20), (120, 400, 5))
NETWORKS = {  # shapes of the matrices: one by one, or those of one shape together?
    "lenet5": ((6, 25), (16, 150), (120, 400), (84, 120), (10, 84)),
    "vit_tiny, depth 3": ((192, 48), *((576, 192), (192, 192), (768, 192), (192, 768)) * 3, (100, 192)),
    "resnet18, 64 channels": ((64, 27), *((64, 576),) * 4),
}
CHOICES: tuple[tuple[str, int | None], ...] = (
    *(("polar_express", steps) for steps in (4, 5, 6, 7, 8, 9)),
    *(("newton_schulz", steps) for steps in (5, 10)),
    ("svd", None),
)
FEW: tuple[tuple[str, int | None], ...] = (
    *(("polar_express", steps) for steps in (7, 9)),
    ("newton_schulz", 5),
    ("svd", None),
)


def torch_svd(M: Tensor) -> Tensor:
    """What one would write without this package; a full-size arbitrary direction where M has none."""
    U, _, Vh = torch.linalg.svd(M, full_matrices=False)
    return U @ Vh


def accuracy(P: Tensor, U: Tensor, Vh: Tensor) -> dict[str, float]:
    """How far P is from U Vh, [..., rows, rank] @ [..., rank, cols]; its singular values on that range and off it."""
    exact, P = U @ Vh, P.double()
    inside = U.mT @ P @ Vh.mT
    on_range = torch.linalg.svdvals(inside)
    return {
        "error": float((P - exact).norm() / exact.norm()),
        "s_min": float(on_range.min()),
        "s_max": float(on_range.max()),
        "null": float(torch.linalg.matrix_norm(P - U @ inside @ Vh, ord=2).max()),
    }


def polar_case(name: str, M: Tensor, rank: int, choices: Any, dtype: str | None, repeats: int) -> list[dict[str, Any]]:
    """Rows of one input: every choice and torch.linalg.svd, timed in turns."""
    U, _, Vh = torch.linalg.svd(M.double(), full_matrices=False)
    U, Vh = U[..., :rank], Vh[..., :rank, :]
    ways: list[tuple[str, int | None, str, Callable[[], Tensor]]] = [
        (method, steps, dtype or "default", lambda method=method, steps=steps: polar(M, method, steps, dtype))
        for method, steps in choices
    ]
    if max(M.shape[-2:]) >= 3 * min(M.shape[-2:]):  # what `polar` does only with matrices that are nearer to square
        compute = getattr(torch, dtype or "float32")
        for method, steps in (("polar_express", 7), ("newton_schulz", 5)):
            on_matrix = partial(_by_iteration, M, coefficients(method, steps), compute, math.inf)
            ways.append((f"{method}, full matrix", steps, dtype or "default", on_matrix))
    if M.dtype == torch.float32 and dtype is None:
        ways.append(("torch.linalg.svd", None, "float32", lambda: torch_svd(M)))
    milliseconds = alternating([way for *_, way in ways], repeats)
    return [
        {
            "shape": " x ".join(map(str, M.shape)), "input": name, "method": method, "steps": steps,
            "computed in": "float64" if method == "svd" else compute.replace("default", "float32"),
            **accuracy(way(), U, Vh), "ms": ms,
        }
        for (method, steps, compute, way), ms in zip(ways, milliseconds, strict=True)
    ]  # fmt: skip


def polar_workload(arguments: argparse.Namespace) -> Table:
    generator = torch.Generator().manual_seed(0)
    rows: list[dict[str, Any]] = []

    def add(name: str, M: Tensor, rank: int, choices: Any = FEW, dtype: str | None = None) -> None:
        rows.extend(polar_case(name, M, rank, choices, dtype, arguments.repeats))

    for shape in SHAPES:
        add("Gaussian", torch.randn(shape, generator=generator), min(shape[-2:]), CHOICES)
    for m, n, rank in LOW_RANK:
        left, right = (torch.randint(-3, 4, shape, generator=generator).float() for shape in ((m, rank), (rank, n)))
        add(f"exact rank {rank}", left @ right, rank)
        add(f"exact rank {rank}", left @ right, rank, FEW[:3], "bfloat16")
    M = torch.randn(64, 576, generator=generator).bfloat16()
    add("bfloat16", M, 64)
    add("bfloat16", M, 64, FEW[:3], "bfloat16")
    for network, shapes in NETWORKS.items():
        stacks = [torch.randn(10, *shape, generator=generator) for shape in shapes]
        ways = [partial(each, stacks, "polar_express", together=together) for together in (False, True)]
        figures = dict.fromkeys(("error", "s_min", "s_max", "null"))
        for how, ms in zip(("one by one", "together"), alternating(ways, arguments.repeats), strict=True):
            same = {"method": "polar_express", "steps": 7, "computed in": "float32", **figures, "ms": ms}
            rows.append({"shape": f"10 clients of {network}", "input": f"Gaussian, {how}", **same})
    note = (
        "error: ||P - UV^T|| / ||UV^T|| (Frobenius) against an SVD in float64; s_min, s_max: singular values of P on "
        "the input's range; null: the largest one off it; ms: median for the whole stack, all of one input in turns."
    )
    return Table("The polar factor", note, rows)


# Printing


def cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.1e}" if value != 0 and abs(value) < 1e-2 else f"{value:.4g}"
    return str(value)


def as_markdown(table: Table) -> str:
    keys = list(table.rows[0])
    lines = [keys, ["---:" if isinstance(value, int | float) else "---" for value in table.rows[0].values()]]
    lines += [[cell(value) for value in row.values()] for row in table.rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def as_rich(table: Table) -> RichTable:
    rich = RichTable(title=table.title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for key, value in table.rows[0].items():
        rich.add_column(key, justify="right" if isinstance(value, int | float) else "left", no_wrap=True)
    for row in table.rows:
        rich.add_row(*map(cell, row.values()))
    return rich


WORKLOADS: dict[str, Callable[[argparse.Namespace], Table]] = {
    "polar": polar_workload,
    "overhead": overhead,
    "population": population,
    **{name: partial(training, name) for name in TRAINING},
}


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
    if arguments.json and not arguments.json.absolute().parent.is_dir():
        parser.error(f"--json {arguments.json}: there is no folder {arguments.json.parent}; name a file in one")
    for engine in arguments.engines.split(","):
        name, _, options = engine.partition(":")
        try:
            checked_job(Composer().compose([f"engine={name}", *filter(None, options.split("+"))]))
        except UsageError as error:
            parser.error(f"--engines {engine}: {error}")

    torch.set_num_threads(arguments.threads)
    table, where = WORKLOADS[arguments.workload](arguments), machine(arguments.threads)
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
