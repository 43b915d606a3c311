"""The scripts' own arguments are checked before anything runs; what scripts/compare.py chooses and keeps."""

import hashlib
import importlib.util
import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from omegaconf import OmegaConf

from fedmuon.apart import flat

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.parametrize(
    "command, said",
    [
        ("benchmark.py --workload mpl", "invalid choice: 'mpl'"),
        ("benchmark.py --workload mlp --engines sequential,foo", "--engines foo: engine=foo: no such option; allowed:"),
        ("benchmark.py --workload mlp --engines stacked:engine.chnk=2", "engine.chnk"),
        ("benchmark.py --workload mlp --repeats 0", "--repeats: 0: must be a whole number, at least 1"),
        ("benchmark.py --workload mlp --rounds x", "--rounds: x: must be a whole number, at least 1"),
        ("benchmark.py --workload mlp --json no/file.json", "--json no/file.json: there is no folder no"),
        ("reproduce.py --table cost --minutes nan", "--minutes nan: must be a number above 0"),
        ("reproduce.py --table cost --minutes -1", "--minutes -1: must be a number above 0"),
        ("compare.py --seeds 0", "--seeds 0: must be at least 1"),
        ("compare.py --table nowhere.json", "--table nowhere.json: there is no such file"),
        (
            "compare.py --table other.json",
            "other.json: is no record of this script (KeyError: 'methods'); name",
        ),
        (
            "compare.py --experiment other",
            "compare_other.json: is no record of this script (KeyError: 'trials'); move it",
        ),
    ],
)
def test_wrong_arguments(command, said, monkeypatch, capsys):
    script, *arguments = command.split()
    Path("other.json").write_text("{}")
    Path("results").mkdir()
    runs = [{"status": "finished", "last": {"test/accuracy": 0.5}, "rounds_to_target": {"0.8": 24}}]
    Path("results/compare_other.json").write_text(json.dumps({"methods": {"fedavg": {"rates": {}, "runs": runs}}}))
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(SCRIPTS / script), run_name="__main__")
    assert left.value.code == 2 and said in capsys.readouterr().err


@pytest.fixture
def compare(monkeypatch) -> ModuleType:
    """scripts/compare.py where FedAvg diverges at a rate of 0.1 and above, after a good start."""
    spec = importlib.util.spec_from_file_location("compare", SCRIPTS / "compare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def trained(method, constants, seed, experiment):
        diverged = constants["local.lr"] >= 0.1
        last = {"val/accuracy": 0.9 if diverged else constants["local.lr"], "test/accuracy": 0.5}
        run = {"status": "failed" if diverged else "finished", "last": last, "seconds": 1.0, "versions": {}}
        run["machine"] = "a processor, 2 threads"
        return {**run, "up_bytes": 1, "down_bytes": 1, "rounds_to_target": None, "bytes_to_target": None}

    monkeypatch.setattr(module, "trained", trained)
    return module


def test_a_trial_that_diverged_is_not_chosen(compare):
    constants, trials = compare.chosen("fedavg", "methods")
    assert constants == {"local.lr": 0.03} and {trial["status"] for trial in trials} == {"failed", "finished"}
    assert [trial["val/accuracy"] for trial in trials if trial["status"] == "failed"] == [0.0] * 3


def test_methods_that_are_not_asked_for_stay_in_the_file(compare, monkeypatch, capsys):
    Path("results").mkdir()
    monkeypatch.setattr(sys, "argv", ["compare.py", "--methods", "fedavg"])
    compare.main()
    before = json.loads(Path("results/compare_methods.json").read_text())["methods"]["fedavg"]
    monkeypatch.setattr(sys, "argv", ["compare.py", "--methods", "fedmuon", "--seeds", "1"])
    compare.main()
    found = json.loads(Path("results/compare_methods.json").read_text())["methods"]
    assert found["fedavg"] == before and len(found["fedmuon"]["runs"]) == 1
    assert "| fedavg | 50.0" in capsys.readouterr().out.split("| method |")[-1]


def test_a_method_keeps_the_commit_of_its_runs(compare, monkeypatch):
    runs = [{"id": "a", "versions": {"torch": "2.14"}, "machine": "a processor, 2 threads"}]
    monkeypatch.setattr(compare, "commit", lambda: "first")
    old = compare.recorded({}, [], runs, {})
    monkeypatch.setattr(compare, "commit", lambda: "second")
    again, anew = compare.recorded({}, [], runs, old), compare.recorded({}, [], [{**runs[0], "id": "b"}], old)
    assert [one["commit"] for one in (old, again, anew)] == ["first", "first", "second"]
    assert again["versions"] == {"torch": "2.14"} and again["machine"] == "a processor, 2 threads"


@pytest.mark.parametrize(
    "file", sorted((SCRIPTS.parent / "results").glob("compare_*.json")), ids=lambda file: file.stem
)
def test_a_committed_record_is_printed(compare, file):
    methods = compare.read(file)
    assert compare.markdown(methods).count("\n") == 1 + len(methods)
    assert all({"chosen", "trials", "runs", "commit", "machine", "versions"} <= set(one) for one in methods.values())


def test_the_rates_of_an_experiment_are_those_that_were_found(compare):
    """conf/rates, for every method whose seeds all came to an end."""
    conf = SCRIPTS.parent / "conf" / "rates"
    found = compare.read(SCRIPTS.parent / "results" / "compare_main.json")
    ended = {name: one["chosen"] for name, one in found.items() if {r["status"] for r in one["runs"]} == {"finished"}}
    rates = {file.stem.removeprefix("main_"): OmegaConf.load(file) for file in conf.glob("main_*.yaml")}
    written = {name: dict(flat(OmegaConf.to_container(one))) for name, one in rates.items()}
    assert written == ended and len(written) == 7


def environment(*words, root):
    """scripts/environment.py as a process in a checkout that holds nothing else."""
    (root / "scripts").mkdir(parents=True, exist_ok=True)
    shutil.copy(SCRIPTS / "environment.py", root / "scripts")
    (root / "pyproject.toml").touch()
    command = [sys.executable, str(root / "scripts" / "environment.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("words, code", [(["--help"], 0), (["-h"], 0), (["tset"], 2), ([], 2), (["run", "test"], 2)])
def test_the_environment_is_made_for_its_own_words_alone(words, code, tmp_path):
    done = environment(*words, root=tmp_path / "checkout")
    assert done.returncode == code and not (tmp_path / "checkout" / ".venv").exists()
    assert "python3 scripts/environment.py run" in done.stdout if code == 0 else done.stderr.count("\n") == 1


def test_a_linked_environment_is_used_only_where_it_is_the_checkouts_own(tmp_path):
    root, theirs = tmp_path / "checkout", tmp_path / "theirs"
    (theirs / "bin").mkdir(parents=True)
    (theirs / "bin" / "python").symlink_to(sys.executable)
    (theirs / ".installed-test").write_text("/another/checkout\n0\n")
    root.mkdir()
    (root / ".venv").symlink_to(theirs)
    before = sorted(theirs.rglob("*"))
    done = environment("run", root=root)
    assert done.returncode == 1 and f".venv: is a link to {theirs}" in done.stderr and done.stderr.count("\n") == 1
    assert sorted(theirs.rglob("*")) == before
    empty = hashlib.sha256(b"").hexdigest()
    (theirs / ".installed-test").write_text(f"{root}\n{empty}\n")
    assert environment("run", root=root).returncode == 0
