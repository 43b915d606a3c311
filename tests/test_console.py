"""Text is printed as it is: overrides hold brackets, which rich would take for its markup, and figures are not cut."""

from types import SimpleNamespace

from rich.console import Console

from fedmuon.callbacks.engines import table as of_engines
from fedmuon.callbacks.progress import RoundProgress
from fedmuon.console import console
from fedmuon.report.terminal import show
from tests.report.directories import write_run

NAME = "algorithm.share=[m],[v],key=:key:"


def test_names_and_causes_keep_their_brackets(tmp_path, capsys):
    run = write_run(tmp_path / "[m]", [0.5], status="failed", summary={"cause": "RoundError: clients [0] [/no] [red]"})
    show([run], names={run: NAME})
    told = capsys.readouterr().out
    assert NAME in told and f"{run}: RoundError: clients [0] [/no] [red]" in told


def test_a_file_or_a_pipe_has_no_edge(capsys):
    console().print(of_engines({"sequential": {}, **{f"engine{i}, workers=[{i}]": {} for i in range(9)}}, []))
    lines = capsys.readouterr().out.splitlines()
    assert "…" not in "".join(lines) and "engine8, workers=[8], absolute" in lines[2] and max(map(len, lines)) < 600


def test_a_run_on_a_terminal_is_called_what_it_is(capsys):
    progress = RoundProgress(NAME)
    progress.console = Console(force_terminal=True, width=200)
    progress.on_train_start(SimpleNamespace(max_epochs=3, current_epoch=0), None)
    progress.teardown(None, None, "fit")
    assert NAME in capsys.readouterr().out
