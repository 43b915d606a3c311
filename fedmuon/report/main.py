"""`fedmuon-report DIR...`: runs compared, as one HTML page, a table in Markdown, LaTeX or CSV, or figures."""

from __future__ import annotations

import argparse
import math
import sys
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedmuon import VERSION
from fedmuon.command import Parser, command
from fedmuon.errors import UsageError
from fedmuon.report.content import content, title_of
from fedmuon.report.runs import read_runs, stamp
from fedmuon.report.write import described, place, replace, table_of, told


@command("fedmuon-report", prints=True)
def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point. Exit codes: 0 done, 2 wrong input (one line on standard error)."""
    args = _parser().parse_intermixed_args(arguments)
    if wrong := [target for target in args.target if not math.isfinite(target)]:
        raise UsageError(f"--target {wrong[0]}: must be a finite number, a value of the metric")
    _check_together(args)
    _watch(args) if args.watch else _write(args)


def _parser() -> Parser:
    parser = Parser(prog="fedmuon-report", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="run directories, or folders with some")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: report.html; - prints it")
    parser.add_argument("--format", default="html", choices=("html", "md", "tex", "csv"), help="default: %(default)s")
    parser.add_argument("--figures", type=Path, metavar="FOLDER", help="also write every figure as SVG and PDF")
    parser.add_argument("--open", action="store_true", help="show the page in a browser")
    parser.add_argument("--watch", action="store_true", help="serve the page on this machine, refreshed until Ctrl-C")
    parser.add_argument("--port", type=int, help="of --watch; default: a free one")
    parser.add_argument("--metric", help='compare by test/METRIC; default: what the runs select by, "accuracy"')
    parser.add_argument("--target", type=float, action="append", default=[], help="of the metric; can be repeated")
    parser.add_argument("--baseline", metavar="ALGORITHM", help="of speed-ups and marks; default: fedavg")
    parser.add_argument("--version", action="version", version=VERSION)
    return parser


def _check_together(args: argparse.Namespace) -> None:
    """Raise UsageError for an option that another one leaves without effect."""
    table = f"--format {args.format}" if args.format != "html" else ""
    written = f"--output {args.output}" if args.output else f"--figures {args.figures}" if args.figures else ""
    if args.watch and (table or written):
        raise UsageError(
            f"{table or written}: is nothing that --watch does, which serves the page; leave one of them away"
        )
    if args.port is not None and not args.watch:
        raise UsageError(f"--port {args.port}: is of --watch alone; give that as well, or leave --port away")
    if args.open and (table or str(args.output) == "-"):
        does = f"{table} makes none" if table else "--output - makes no file of it"
        raise UsageError(f"--open: shows the page, and {does}; leave one of them away")


def _options(args: argparse.Namespace) -> dict[str, Any]:
    return {"metric": args.metric, "targets": args.target, "baseline": args.baseline}


def _write(args: argparse.Namespace) -> None:
    runs, problems = read_runs(args.folders)
    for problem in [*problems, *(problem for run in runs for problem in run.problems)]:
        print(f"fedmuon-report: {problem}", file=sys.stderr)
    path = place(args.output or Path("report.html"))
    if args.format != "html":
        text = table_of(runs, args.format, **_options(args))
        if args.output:
            replace(path, text)
        else:
            print(text, end="")
    if args.format == "html" or args.figures:
        found = content(runs, problems, title=title_of(args.folders), **_options(args))
    if args.figures:
        from fedmuon.report.figures import write_figures

        print(f"{len(write_figures(found, args.figures))} figures in {args.figures}", file=sys.stderr)
    if args.format == "html":
        from fedmuon.report.page import page

        replace(path, page(found))
        print(path, file=told(path))
        if args.open:
            webbrowser.open(path.absolute().as_uri())


def _watch(args: argparse.Namespace) -> None:
    from fedmuon.report.watch import Watch

    try:
        server = Watch(lambda: described(args.folders, **_options(args)), lambda: stamp(args.folders), args.port or 0)
    except (OSError, OverflowError) as error:
        raise UsageError(f"--port {args.port}: cannot be used ({error}); leave it away for a free one") from error
    print(f"{server.address} shows the runs as they go on; Ctrl-C ends it", flush=True)
    if args.open:
        webbrowser.open(server.address)
    with server, suppress(KeyboardInterrupt):
        server.serve_forever()


if __name__ == "__main__":
    main()
