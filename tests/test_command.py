"""The five commands begin and end alike, and what cannot be printed ends none."""

import os
import re
import signal
import subprocess
import sys
from argparse import ArgumentParser
from contextlib import suppress
from pathlib import Path

import pytest

from fedmuon import entry
from fedmuon.command import prepare_process

PROJECT = (Path(__file__).parents[1] / "pyproject.toml").read_text()
SCRIPTS = dict(re.findall(r'^(fedmuon[\w-]*) = "fedmuon.entry:(\w+)"$', PROJECT, re.MULTILINE))
COMMANDS = dict(re.findall(r'_entry\("([\w-]+)", "([\w.]+)"\)', Path(entry.__file__).read_text()))
LONG = 260 * "a"  # no file can be called so
TAKES_A_PATH = {"fedmuon": "run_dir=", "fedmuon-tune": "tune_dir=", "fedmuon-partition": "data.root="}


@pytest.fixture
def ends(monkeypatch, capfd):
    """Calls a command, and gives its exit code, standard output and standard error."""

    def run(command: str, *words: str) -> tuple:
        monkeypatch.setattr(sys, "argv", [command, *words])
        with pytest.raises(SystemExit) as left:
            getattr(entry, SCRIPTS[command])()
        sys.stdout.flush()
        return left.value.code or 0, *capfd.readouterr()

    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_tells_its_version(command, ends):
    (version,) = re.findall(r'^version = "(.+)"$', PROJECT, re.MULTILINE)
    assert ends(command, "--version") == (0, f"fedmuon {version}\n", "") and len(COMMANDS) == 5


@pytest.mark.parametrize("command", COMMANDS)
def test_an_option_that_is_none_is_one_line(command, ends):
    code, out, err = ends(command, "--none", "x")
    told = rf"{command}: unrecognized arguments: --none\b.*; {command} --help says what there is\n"
    assert (code, out) == (2, "") and re.fullmatch(told, err)


@pytest.mark.parametrize("command", COMMANDS)
def test_what_the_system_says_of_a_path_is_one_line(command, ends):
    code, out, err = ends(command, f"{TAKES_A_PATH.get(command, '')}{LONG}")
    assert (code, out) == (2, "") and re.fullmatch(rf"{command}: \S*{LONG}\S*: File name too long\n", err)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_current_folder_that_is_gone_is_one_line(command, ends, tmp_path, monkeypatch):
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    told = f"{command}: the current folder is no longer there; change to another one\n"
    assert ends(command, "x") == (2, "", told)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_interruption_is_one_line(command, ends, monkeypatch):
    def interrupted(*_) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ArgumentParser, "parse_known_args", interrupted)
    assert ends(command, "x") == (130, "", f"{command}: interrupted\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_an_interruption_of_the_imports_is_one_line(command, ends, monkeypatch):
    def interrupted(module: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(entry, "import_module", interrupted)
    assert ends(command) == (130, "", f"{command}: interrupted\n")


@pytest.mark.parametrize("module", ["fedmuon", "fedmuon.report", *COMMANDS.values()])
def test_every_command_is_a_module_too(module):
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("fedmuon ")


def full() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def left_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def closed_terminal() -> int:
    ours, theirs = os.openpty()
    os.close(ours)
    return theirs


PRINTS = """
import sys
from fedmuon.command import command
with command("fedmuon"):
    for stream in (sys.stdout, sys.stderr):
        print("\u2026", file=stream, flush=True)
print("\u2026")
"""


def pipe_that_nobody_waits_for() -> int:
    _, write = os.pipe()
    os.set_blocking(write, False)
    with suppress(BlockingIOError):
        while os.write(write, 4096 * b"x"):
            pass
    return write


@pytest.mark.parametrize("stdout", [full, left_pipe, closed_terminal, pipe_that_nobody_waits_for])
def test_what_cannot_be_printed_ends_no_command(stdout):
    env = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    out = stdout()
    done = subprocess.run([sys.executable, "-c", PRINTS], stdout=out, stderr=subprocess.PIPE, env=env)
    os.close(out)
    assert (done.returncode, done.stderr) == (0, b"?\n")


def test_what_a_command_is_asked_to_print_is_not_lost_without_a_word():
    program = PRINTS.replace('command("fedmuon")', 'command("fedmuon", prints=True)')
    for out, code, told in ((full(), 2, b"?\nfedmuon: [Errno 28] No space left on device\n"), (left_pipe(), 0, b"?\n")):
        done = subprocess.run([sys.executable, "-c", program], stdout=out, stderr=subprocess.PIPE)
        os.close(out)
        assert (done.returncode, done.stderr.replace("\u2026".encode(), b"?")) == (code, told)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_an_end_from_outside_is_an_interruption_unless_it_is_ignored(number):
    before = signal.signal(number, signal.SIG_IGN)  # as nohup does
    try:
        prepare_process()
        assert signal.getsignal(number) == signal.SIG_IGN
        signal.signal(number, signal.SIG_DFL)
        prepare_process()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    finally:
        prepare_process()  # which forgets it: runs of later tests in this process would heed it
        signal.signal(number, before)


SWALLOWS = """
import signal
from contextlib import suppress
from fedmuon.command import command, heed_interruption
from fedmuon.errors import UsageError
with command("fedmuon"):
    with suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    {then}
print("goes on")
"""


@pytest.mark.parametrize("then", ["heed_interruption()", "raise UsageError('')"])
def test_an_interruption_that_code_swallows_is_not_lost(then):
    done = subprocess.run([sys.executable, "-c", SWALLOWS.format(then=then)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "fedmuon: interrupted\n")
