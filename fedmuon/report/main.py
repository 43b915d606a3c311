"""`fedmuon-report DIR...`: runs compared, as one HTML page, a table in Markdown, LaTeX or CSV, or figures."""

from __future__ import annotations

import argparse
import os
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmuon.errors import UsageError
from fedmuon.report.runs import read_runs, stamp


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point. Exit codes: 0 done, 2 wrong input (one line on standard error)."""
    args = _parser().parse_args(arguments)
    try:
        _watch(args) if args.watch else _write(args)
    except UsageError as error:
        print(f"fedmuon-report: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(0 if args.watch else 130)


def report(folders: Sequence[str | Path], output: str | Path = "report.html", **options: Any) -> Path:
    """Write the page that compares the runs in and below some folders; returns its path.

    options: metric, targets, baseline as of `fedmuon.report.content.content`. Raises UsageError for folders without
    runs.
    """
    from fedmuon.report.page import page

    path = _place(Path(output))
    _replace(path, page(_content([Path(folder) for folder in folders], options)))
    return path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fedmuon-report", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="run directories, or folders with some")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: report.html; tables are printed")
    parser.add_argument("--format", default="html", choices=("html", "md", "tex", "csv"), help="default: %(default)s")
    parser.add_argument("--figures", type=Path, metavar="FOLDER", help="also write every figure as SVG and PDF")
    parser.add_argument("--open", action="store_true", help="show the page in a browser")
    parser.add_argument("--watch", action="store_true", help="serve the page on this machine, refreshed until Ctrl-C")
    parser.add_argument("--port", type=int, default=0, help="of --watch; default: a free one")
    parser.add_argument("--metric", help='compare by test/METRIC; default: what the runs select by, "accuracy"')
    parser.add_argument("--target", type=float, action="append", default=[], help="of the metric; can be repeated")
    parser.add_argument("--baseline", default="fedavg", help="algorithm of speed-ups and marks; default: %(default)s")
    return parser


def _options(args: argparse.Namespace) -> dict[str, Any]:
    return {"metric": args.metric, "targets": args.target, "baseline": args.baseline}


def _content(folders: Sequence[Path], options: dict[str, Any]) -> dict[str, Any]:
    from fedmuon.report.content import content, title_of

    runs, problems = read_runs(folders)
    return content(runs, problems, title=title_of(folders), **options)


def _write(args: argparse.Namespace) -> None:
    runs, problems = read_runs(args.folders)
    for problem in [*problems, *(problem for run in runs for problem in run.problems)]:
        print(f"fedmuon-report: {problem}", file=sys.stderr)
    path = _place(args.output) if args.output else None
    if args.format != "html":
        text = _table(args, runs)
        if path:
            _replace(path, text)
        else:
            print(text, end="")
    if args.format == "html" or args.figures:
        from fedmuon.report.content import content, title_of

        found = content(runs, problems, title=title_of(args.folders), **_options(args))
        if args.figures:
            from fedmuon.report.figures import write_figures

            print(f"{len(write_figures(found, _folder(args.figures)))} figures in {args.figures}", file=sys.stderr)
        if args.format == "html":
            from fedmuon.report.page import page

            path = path or _place(Path("report.html"))
            _replace(path, page(found))
            print(path)
            if args.open:
                webbrowser.open(path.absolute().as_uri())


def _table(args: argparse.Namespace, runs: Sequence[Any]) -> str:
    from fedmuon.report.compare import groups
    from fedmuon.report.results import metric_of
    from fedmuon.report.rows import rows, targets_of
    from fedmuon.report.tables import FORMATS

    metric = metric_of(runs, args.metric)
    targets = targets_of(runs, metric, args.target)
    return FORMATS[args.format](rows(groups(runs), metric, targets, args.baseline), metric, targets)


def _watch(args: argparse.Namespace) -> None:
    from fedmuon.report.watch import Watch

    try:
        server = Watch(lambda: _content(args.folders, _options(args)), lambda: stamp(args.folders), args.port)
    except (OSError, OverflowError) as error:
        raise UsageError(f"--port {args.port}: cannot be used ({error}); leave it away for a free one") from error
    print(f"{server.address} shows the runs as they go on; Ctrl-C ends it", flush=True)
    if args.open:
        webbrowser.open(server.address)
    with server:
        server.serve_forever()


def _place(path: Path) -> Path:
    if path.is_dir() or not path.absolute().parent.is_dir():
        what = "is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise UsageError(f"--output {path}: {what}; name a file in a folder that exists")
    return path


def _folder(path: Path) -> Path:
    if path.exists() and not path.is_dir():
        raise UsageError(f"--figures {path}: is a file; name a folder")
    return path


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


if __name__ == "__main__":
    main()
