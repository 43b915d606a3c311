"""What the commands' scripts call: their imports can be interrupted in one line too."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from fedmuon.command import ending


def _entry(name: str, module: str) -> Callable[[], None]:
    def main() -> None:
        with ending(name):
            start = import_module(module).main
        start()

    return main


fedmuon = _entry("fedmuon", "fedmuon.cli")
evaluate = _entry("fedmuon-evaluate", "fedmuon.evaluate")
tune = _entry("fedmuon-tune", "fedmuon.tune")
partition = _entry("fedmuon-partition", "fedmuon.report.partition")
report = _entry("fedmuon-report", "fedmuon.report.main")
