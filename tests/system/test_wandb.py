"""Weights & Biases without an account: no network, no prompt, one offline run a job with the round as its step."""

import os
import time
from pathlib import Path

import pytest

import fedmuon
from fedmuon import attached
from fedmuon.errors import UsageError
from fedmuon.loggers import wandb_mode
from tests.system.offline import history
from tests.system.runs import command, rows


def with_wandb(tiny: list[str]) -> list[str]:
    return [override if override != "logger=none" else "logger=wandb" for override in tiny]


def test_offline_without_network_or_prompt(tiny):
    """A proxy that nobody listens at, and no terminal to ask at."""
    nowhere = {
        name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    }
    done = command(*with_wandb(tiny), "run_dir=run", **nowhere)
    assert done.returncode == 0, done.stderr
    assert "wandb:" not in done.stdout + done.stderr
    assert not [
        word for word in ("api_key", "API key", "log in", "127.0.0.1", "Traceback") if word in done.stdout + done.stderr
    ]
    logged, measured = history(Path("run")), rows(Path("run"))
    assert [row["trainer/global_step"] for row in logged] == [1, 2, 3]  # the x axis that Lightning's logger defines
    for row, expected in zip(logged, measured, strict=True):
        assert {key: row[key] for key in expected} == expected
    assert {path.name for path in Path().iterdir()} == {"run"}


def test_jobs_of_one_process_are_runs_of_their_own(tiny):
    runs = [fedmuon.run([*with_wandb(tiny), f"seed={seed}"]).path for seed in (1, 2)]
    names = [folder.name.rsplit("-", 1)[1] for run in runs for folder in run.glob("wandb/offline-run-*")]
    assert len(set(names)) == 2
    assert [len(history(run)) for run in runs] == [3, 3]


def test_a_failed_run_is_finished_too_and_the_next_one_is_its_own(tiny):
    with pytest.raises(Exception, match="NaN or infinity"):
        fedmuon.run([*with_wandb(tiny), "local.lr=1e30", "run_dir=bad"])
    run = fedmuon.run([*with_wandb(tiny), "run_dir=good"]).path
    deadline = time.monotonic() + 10  # W&B's own process writes the file, a moment after the run has ended
    while not history(run) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(history(run)) == 3 and not history(Path("bad"))


def test_offline_where_a_key_is_configured_and_nobody_answers(tiny, monkeypatch, capsys):
    import wandb

    init, torn, projects = wandb.init, [], []

    def unreachable(**given):
        projects.append(given["project"])
        if given["mode"] == "online":
            raise wandb.errors.CommError("Failed to get resume status:\nconnection refused")
        return init(**given)

    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setenv("WANDB_PROJECT", "thesis")
    monkeypatch.setattr(wandb, "init", unreachable)
    monkeypatch.setattr(wandb, "teardown", lambda: torn.append(1))
    run = fedmuon.run([*with_wandb(tiny), "federation.rounds=1"]).path
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fedmuon: logger=wandb: offline")]
    assert len(said) == len(torn) == 1 and "connection refused" in said[0] and projects == ["thesis", "thesis"]
    assert len(history(run)) == 1 and wandb.run is None


def test_a_run_that_is_open_is_logged_to_and_stays_open(tiny):
    import wandb

    with wandb.init(mode="offline", project="mine", settings=wandb.Settings(console="off", silent=True)) as opened:
        fedmuon.run([*with_wandb(tiny), "federation.rounds=1", "run_dir=run"])
        assert wandb.run is opened and opened.summary["round"] == 1
    assert not list(Path("run").glob("wandb/offline-run-*"))


def test_disabled_by_the_environment(tiny, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    summary, run = fedmuon.run(with_wandb(tiny))
    assert summary["status"] == "finished" and not list(run.glob("wandb/*run-*/*.wandb"))


def test_a_mode_that_wandb_has_not_is_refused_before_a_directory_is_made(tiny, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "nonsense")
    with pytest.raises(UsageError, match=r"^WANDB_MODE=nonsense: is none of online, offline, disabled, .*; set one"):
        fedmuon.run([*with_wandb(tiny), "run_dir=run"])
    assert not Path("run").exists()
    assert fedmuon.run([*tiny, "federation.rounds=1"]).summary["status"] == "finished", "another logger does not ask"


def test_a_current_folder_that_is_no_utf8_is_refused(tiny, monkeypatch):
    here = Path("caf\udce9").absolute()
    here.mkdir()
    monkeypatch.chdir(here)
    with pytest.raises(UsageError, match=r"^logger=wandb: the current folder, '.*caf\\udce9', is no UTF-8"):
        fedmuon.run([*with_wandb(tiny), "run_dir=run"])
    run = fedmuon.run([*tiny, "federation.rounds=1", "run_dir=run"]).path
    assert sorted(path.name for path in Path().iterdir()) == ["run"] and (run / "model.safetensors").exists()


def test_the_modes_are_those_of_wandb():
    import wandb

    for mode in attached._MODES:
        wandb.Settings(mode=mode)
    with pytest.raises(Exception, match="mode"):
        wandb.Settings(mode="nonsense")


@pytest.mark.parametrize("home", [None, "/dev/null/home"])
def test_without_a_home_that_can_be_written(tiny, monkeypatch, home):
    """A user that the system does not know, in a container; nothing is kept outside the run."""
    import wandb

    def unknown(_):
        raise KeyError("getpwuid(): uid not found")

    wandb.teardown()
    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.delenv("FEDMUON_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME") if home is None else monkeypatch.setenv("HOME", home)
    before = dict(os.environ)
    run = fedmuon.run([*with_wandb(tiny), "federation.rounds=1", "run_dir=run"]).path
    assert len(history(run)) == 1 and (run / "wandb" / "home").is_dir() and dict(os.environ) == before
    assert {path.name for path in Path().iterdir()} == {"run"}
    wandb.teardown()  # the next run's service has its own


@pytest.mark.parametrize(
    ("env", "netrc", "mode"),
    [
        ({}, "", "offline"),
        ({"WANDB_API_KEY": "k" * 40}, "", "online"),
        ({"WANDB_API_KEY": "k" * 40, "WANDB_MODE": "offline"}, "", "offline"),
        ({}, "machine api.wandb.ai login user password k", "online"),
        ({}, "machine example.org login user password k", "offline"),
        ({"WANDB_BASE_URL": "https://wandb.example.org"}, "machine wandb.example.org login user password k", "online"),
        ({}, "this is no netrc", "offline"),
        ({"NETRC": "~no-such-user/netrc"}, "", "offline"),
    ],
)
def test_online_only_where_a_key_is_configured(env, netrc, mode, monkeypatch):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    file = Path(os.environ["HOME"]) / ".netrc"
    file.write_text(netrc)
    file.chmod(0o600)
    assert wandb_mode() == mode
