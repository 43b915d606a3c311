"""The FedMuon paper's tables (arXiv 2510.27403) by one command: published beside measured.

    python scripts/reproduce.py --table cifar100 --data CIFAR100 --lists LISTS --cells resnet18/0.1 --seeds 1
    python scripts/reproduce.py --table ablation --dry-run --data CIFAR100
    python scripts/reproduce.py --table all --quick
    python scripts/reproduce.py --docs

Underneath are Hydra sweeps, one a group of cells: started again, the same command goes on where it was stopped. When
all have ended, results/paper_<table>.json has them; until then, and for a trial (--rounds, or --quick with overrides),
outputs/paper/paper_<table>.json. The table is printed and written to outputs/paper as Markdown, LaTeX and HTML.
Overrides of any key follow after --, such as `-- trainer.precision=bf16-mixed` or `-- hydra/launcher=joblib`.
Exit codes: 0 every cell is finished, 1 some failed or are unfinished, 2 wrong input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from fedmuon.config import CONF
from fedmuon.errors import UsageError
from fedmuon.paper import docs, figures, rates, record, render, rows, runner
from fedmuon.paper.estimate import duration, estimate
from fedmuon.paper.tables import PROTOCOLS, Setting, Sweep, Table, chosen, sweep, tables


def main() -> None:
    args = _arguments()
    try:
        if args.docs:
            print(f"written: {docs.write(Path('docs/reproduction.md'), args.results)}")
            return
        wanted = list(tables().values()) if args.table == "all" else [tables()[args.table]]
        complete = [reproduced(table, args) for table in wanted]
    except UsageError as error:
        print(f"reproduce: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("reproduce: interrupted; the same command goes on", file=sys.stderr)
        sys.exit(130)
    sys.exit(0 if all(complete) else 1)


def reproduced(table: Table, args: argparse.Namespace) -> bool:
    """Plan, run and show one table; whether every cell of it is finished."""
    sweeps = _sweeps(table, args)
    if not sweeps:
        if args.table == "all":
            return True
        given = " ".join(["--protocol", str(args.protocol), "--cells", *args.cells, *["--quick"] * args.quick])
        raise UsageError(f"{given}: {table.name} has no cell of that kind; leave one of them away")
    seeds = min(args.seeds, table.seeds or args.seeds)
    runs = [one for each in sweeps for one in runner.planned(each, seeds, args.outputs)]
    left = _show_plan(table, sweeps, runs, args)
    if args.dry_run:
        return True
    trial = args.rounds is not None or (args.quick and bool(args.overrides))

    def recorded() -> dict:
        file, beside = (record.path_of(table.name, args.quick, folder) for folder in (args.results, args.outputs))
        return record.update(file, runs, _command(), beside=None if args.results_named else beside, trial=trial)

    until = None if args.minutes is None else args.started + 60 * args.minutes

    def do(each: Sweep) -> None:
        if any(one.sweep == each for one in left) and (until is None or time.monotonic() < until):
            runner.run(each, seeds, args.outputs, until=until, threads=1 if args.jobs > 1 else None)
            with args.lock:
                found = recorded()
                if table.name == "rates" and not trial:
                    args.written += rates.write(each, found, CONF / "paper" / "rates")

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(do, sweeps))
    _show_table(table, sweeps, recorded(), args)
    return all(one.finished for one in runs)


def _command() -> str:
    """What was typed, without the names of somebody's folders."""
    words, named = [], {"--data": "CIFAR100", "--lists": "LISTS"}
    given = iter(word for one in sys.argv[1:] for word in (one.split("=", 1) if one.startswith("--") else [one]))
    for one in given:
        if one in ("--outputs", "--results"):
            next(given)
        else:
            words += [one, named[one]] if one in named and next(given) else [one]
    return " ".join(["python scripts/reproduce.py", *words])


def _sweeps(table: Table, args: argparse.Namespace) -> list[Sweep]:
    asked = args.protocol is not None
    protocols = [p for p in PROTOCOLS if p in table.protocols and args.protocol in (None, "both", p)]
    if not protocols:
        raise UsageError(f"--protocol {args.protocol}: {table.name} has cells for {', '.join(table.protocols)} only")
    setting = Setting(args.quick, args.data, args.lists, args.rounds, args.device, tuple(args.overrides))
    return [
        sweep(table, group, protocol, setting)
        for protocol in protocols
        for group in chosen(table, protocol, asked, args.cells, args.methods)
        if not (args.quick and group.quick is None)
    ]


def _show_plan(
    table: Table, sweeps: Sequence[Sweep], runs: Sequence[runner.Planned], args: argparse.Namespace
) -> list[runner.Planned]:
    """Print what is to be done and how long it will take; the runs that are left."""
    left = [one for one in runs if not one.finished]
    print(f"{table.name}: {table.title}{' (--quick)' if args.quick else ''}")
    for each in sweeps:
        own = [one for one in runs if one.sweep == each]
        done = sum(one.finished for one in own)
        rounds = own[0].config.federation.rounds
        print(f"  {each.protocol}, {each.group}: {len(own)} runs of {rounds} rounds, {done} done")
        if missing := rates.unsearched(each, CONF / "paper" / "rates"):
            print(f"    at their own rates, not searched (--table rates does): {', '.join(missing)}")
        if args.dry_run:
            for one in own:
                state = "done" if one.finished else f"round {one.rounds_done} of {one.config.federation.rounds}"
                print(f"    {rows.label(each, one.row)}, seed {one.seed}: {state}")
    if args.dry_run:
        seeds = 1 + max(one.seed for one in runs)
        print("\n".join(f"  {command}" for command in runner.commands(sweeps, seeds, args.outputs)))
    time_left = estimate(runs, args.results, measures=not args.no_measure)
    took = "" if time_left.seconds is None else f"about {duration(time_left.seconds)} one after the other, from "
    print(f"  {len(left)} of {len(runs)} runs are left: {took}{time_left.source}", flush=True)
    return left


def _show_table(table: Table, sweeps: Sequence[Sweep], found: dict, args: argparse.Namespace) -> None:
    lines, notes = rows.lines(sweeps, found), rows.notes(sweeps, found)
    if any("published" in line for line in lines):
        notes += [f"[{letter}] {text}" for letter, text in figures.sources().items()]
    title = f"{table.title}{' - quick: embedded images, a small perceptron' if args.quick else ''}"
    name = f"{table.name}{'_quick' if args.quick else ''}"
    files = render.write(args.outputs, name, title, lines, notes)
    print(f"\n{render.markdown(lines)}\n")
    print("\n".join([*notes, f"written: {', '.join(map(str, [*files, *args.written]))}"]), flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--table", choices=[*tables(), "all"])
    what.add_argument("--docs", action="store_true", help="only write the tables of docs/reproduction.md anew")
    parser.add_argument("--protocol", choices=[*PROTOCOLS, "both"], help="default: each cell's own, see tables.yaml")
    parser.add_argument("--cells", nargs="+", default=[], metavar="CELL", help="groups of cells, such as resnet18/0.1")
    parser.add_argument("--methods", nargs="+", default=[], metavar="METHOD", help="such as fedmuon fedavg")
    parser.add_argument("--seeds", type=int, help="default: 3, with --quick 1")
    parser.add_argument("--rounds", type=int, help="default: the protocol's 300")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], help="trainer.accelerator")
    parser.add_argument("--data", metavar="FOLDER", help="CIFAR-100 as Parquet files; default: the hub")
    parser.add_argument("--lists", metavar="FOLDER", help="the authors' index lists, for the published protocol")
    parser.add_argument("--quick", action="store_true", help="embedded images, a small network, ten rounds, one seed")
    parser.add_argument("--dry-run", action="store_true", help="only the plan: runs, commands, time")
    parser.add_argument("--minutes", type=float, help="stop after so many; the same command goes on")
    parser.add_argument("--jobs", type=int, default=1, help="sweeps at the same time; above 1 with one thread each")
    parser.add_argument("--no-measure", action="store_true", help="no measurement where there are no earlier results")
    parser.add_argument("--outputs", type=Path, default=Path("outputs/paper"), metavar="FOLDER", help="of the runs")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="of the JSON files, unfinished ones too")
    parser.add_argument("overrides", nargs="*", help="after --: overrides for every run")
    args = parser.parse_args()
    if (args.seeds is not None and args.seeds < 1) or args.jobs < 1 or (args.rounds is not None and args.rounds < 1):
        parser.error("--seeds, --rounds and --jobs: must be at least 1")
    if args.minutes is not None and not 0 < args.minutes < math.inf:
        parser.error(f"--minutes {args.minutes:g}: must be a number above 0")
    if args.table == "all" and (args.cells or args.methods):
        parser.error("--cells, --methods: choose within one table; name it with --table")
    args.seeds = args.seeds or (1 if args.quick else 3)
    args.results_named, args.results = args.results is not None, args.results or Path("results")
    args.started, args.lock, args.written = time.monotonic(), Lock(), []
    return args


if __name__ == "__main__":
    main()
