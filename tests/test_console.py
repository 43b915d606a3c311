"""Text is printed as it is: overrides hold brackets, which rich would take for its markup, and figures are not cut."""

import re
from types import SimpleNamespace

import pytest
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


@pytest.mark.parametrize(
    ("width", "left_out"), [(120, ()), (80, ("up", "down")), (60, ("up", "down", "seconds", "(round)"))]
)
def test_a_narrow_terminal_leaves_out_figures_before_the_name_becomes_a_thread(
    tmp_path, capsys, monkeypatch, width, left_out
):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")
    run = write_run(tmp_path / "run", [0.5], summary={"last": {"test/accuracy": 0.5}})
    show([run], names={run: "local.clip=10,seed=1,server=adam"})
    told = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    titles = ("status", "last round", "best by val.", "(round)", "up", "down", "seconds")
    assert re.findall("|".join(map(re.escape, titles)), told.splitlines()[1]) == [
        title for title in titles if title not in left_out
    ]
    assert "finished" in told and "0.5000" in told and "…" not in told
    assert re.search(r"^local\.clip=10,seed=", told, re.MULTILINE)


def test_a_run_on_a_terminal_is_called_what_it_is(capsys):
    progress = RoundProgress(NAME)
    progress.console = Console(force_terminal=True, width=200)
    progress.on_train_start(SimpleNamespace(max_epochs=3, current_epoch=0), None)
    progress.teardown(None, None, "fit")
    assert NAME in capsys.readouterr().out
