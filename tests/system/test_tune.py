"""`fedmuon-tune`: the same budget for each method, ordinary run directories, a study that survives a kill."""

import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
from omegaconf import OmegaConf

import fedmuon
from fedmuon.cli import checked_jobs
from fedmuon.config import CONF
from fedmuon.errors import UsageError
from fedmuon.experiment import RunFailed
from fedmuon.searching import tune
from fedmuon.space import Range
from fedmuon.tune import main, read
from tests.system.runs import assert_same_run, rows


def trials(folder: str, algorithm: str) -> list[tuple]:
    study = optuna.load_study(storage=f"sqlite:///{Path(folder, 'study.db').absolute()}", study_name=algorithm)
    return [(t.params, t.state, t.value, t.intermediate_values) for t in study.trials]


def test_two_methods_with_one_budget(tiny, capsys):
    words = [*tiny, "algorithm=fedavg,fedmuon", "n_trials=4"]
    assert tune(read([*words, "tune_dir=out"])) == 0
    said = capsys.readouterr().out
    for algorithm in ("fedavg", "fedmuon"):
        assert len(trials("out", algorithm)) == 4
        best = OmegaConf.load("out/best.yaml")[algorithm]
        values = [value for _, _, value, _ in trials("out", algorithm) if value is not None]
        assert best.value == max(values) and best.command in said
        again = fedmuon.run([*shlex.split(best.command)[1:], f"run_dir=again_{algorithm}"])
        assert again.summary["best"]["val/accuracy"] == best.value
        assert_same_run(Path(best.run), again.path)
    first = OmegaConf.load(Path("out", trial_run("out", "fedmuon", 0), "config.yaml"))
    own = checked_jobs([*tiny, "algorithm=fedmuon"])[0].config
    assert (first.local.lr, first.algorithm.alpha) == (own.local.lr, own.algorithm.alpha)  # the configuration as it is
    assert tune(read([*words, "tune_dir=same"])) == 0
    assert trials("same", "fedmuon") == trials("out", "fedmuon")
    written = {file: file.stat().st_mtime_ns for file in Path("out").glob("*/*.jsonl")}
    assert tune(read([*words[:-1], "n_trials=5", "tune_dir=out"])) == 0  # a larger budget goes on
    assert len(trials("out", "fedavg")) == 5 and trials("out", "fedavg")[:4] == trials("same", "fedavg")
    assert written == {file: file.stat().st_mtime_ns for file in written}
    assert len(Path("out/sweep.csv").read_text().splitlines()) == 11


def trial_run(folder: str, algorithm: str, number: int) -> str:
    study = optuna.load_study(storage=f"sqlite:///{Path(folder, 'study.db').absolute()}", study_name=algorithm)
    return study.trials[number].user_attrs["run"]


def test_a_search_by_a_loss_takes_the_smallest(tiny):
    words = [*tiny, "algorithm=fedavg", "evaluation.metric=loss", "n_trials=3", "federation.rounds=2", "tune_dir=out"]
    assert tune(read(words)) == 0
    values = [value for _, _, value, _ in trials("out", "fedavg") if value is not None]
    assert OmegaConf.load("out/best.yaml").fedavg.value == min(values) < max(values)


def test_the_study_lies_in_its_folder_whatever_the_folder_is_called(tiny):
    folder = Path("a?b 50%25 #{x}")
    words = [*tiny, "algorithm=fedavg", "federation.rounds=1", f"tune_dir={folder}"]
    for count in (1, 2):  # found again
        assert tune(read([*words, f"n_trials={count}"])) == 0
    assert {path.name for path in Path().iterdir()} == {folder.name} and (folder / "study.db").is_file()
    assert len(list(folder.glob("*/summary.json"))) == 2


def test_killed_at_any_moment_it_ends_as_if_it_had_not_been(tiny):
    words = [*tiny, "algorithm=fedavg", "n_trials=4", "federation.rounds=4"]
    assert tune(read([*words, "tune_dir=whole"])) == 0
    seed = time.time_ns()
    moments = random.Random(seed)
    lines, delay = moments.randrange(16), moments.random() * 0.1
    print(f"killed after {lines} lines and {delay:.3f} s (seed {seed})")
    program = "import sys; from fedmuon.tune import main; main()"
    process = subprocess.Popen([sys.executable, "-c", program, *words, "tune_dir=cut"], stdout=subprocess.DEVNULL)

    def written() -> int:
        return sum(file.read_bytes().count(b"\n") for file in Path("cut").glob("*/metrics.jsonl"))

    while process.poll() is None and (written() < lines or not Path("cut/study.db").exists()):
        time.sleep(0.001)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert tune(read([*words, "tune_dir=cut"])) == 0
    assert trials("cut", "fedavg") == trials("whole", "fedavg")
    for number in range(4):
        name = trial_run("whole", "fedavg", number)
        assert trial_run("cut", "fedavg", number) == name
        assert_same_run(Path("whole", name), Path("cut", name))


def test_trials_are_given_up_and_diverged_ones_count(tiny, tmp_path):
    """Six trials without progress: the ones behind the median of the first five end early."""
    Path("space.yaml").write_text("local.lr: {values: [0.3, 0.2, 0.1, 0.05, 0.03, 1e-9, 1e30]}")
    words = [*tiny, "algorithm=fedavg", "federation.rounds=8", "n_trials=14", "tune_dir=out", "space=space.yaml"]
    assert tune(read(words)) == 0
    states = [state for _, state, _, _ in trials("out", "fedavg")]
    statuses = {OmegaConf.load(file).status for file in Path("out").glob("*/summary.json")}
    assert len(states) == 14 and optuna.trial.TrialState.PRUNED in states
    assert {"finished", "pruned", "failed"} >= statuses and len(statuses) > 1
    for file in Path("out").glob("*/summary.json"):
        if OmegaConf.load(file).status == "pruned":
            assert rows(file.parent)[-1]["round"] < 8


def test_a_fault_counts_no_trial_and_the_same_command_goes_on(tiny, monkeypatch, capsys):
    words = [*tiny, "algorithm=fedavg", "n_trials=2", "federation.rounds=2"]
    full = RunFailed("out/run: OSError: no space left on device", Path("out/run"))
    full.__cause__ = OSError()
    faults: list[Exception] = [full, UsageError("data.root=gone: there is no such folder")]

    def execute(job, **given):
        if faults:
            raise faults.pop(0)
        return fedmuon.experiment.execute(job, **given)

    monkeypatch.setattr("fedmuon.searching.execute", execute)
    assert tune(read([*words, "tune_dir=out"])) == 1
    assert "no space left on device" in capsys.readouterr().err
    with pytest.raises(UsageError, match="no such folder"):
        tune(read([*words, "tune_dir=out"]))
    elsewhere = ["engine.workers=1", "trainer.max_time=01:00:00:00", "tune_dir=out"]
    assert tune(read([*words, *elsewhere])) == tune(read([*words, "tune_dir=whole"])) == 0
    assert trial_run("out", "fedavg", 0) == trial_run("whole", "fedavg", 0)  # it goes on in the folder that it began
    assert trials("out", "fedavg") == trials("whole", "fedavg")


@pytest.mark.parametrize("moment", ["before it is told", "after it is told"])
def test_a_trial_cut_off_while_it_is_given_up_is_given_up(tiny, monkeypatch, moment):
    words = [*tiny, "algorithm=fedavg", "n_trials=1", "federation.rounds=4", "tune_dir=out"]
    faults = [OSError("cut off")]

    def should_prune(trial: optuna.Trial) -> bool:
        ((_, _, _, reported),) = trials("out", "fedavg")
        if max(reported) == 2 and moment == "before it is told" and faults:
            raise faults.pop()
        return max(reported) >= 2

    def save(*given) -> None:
        raise faults.pop()

    monkeypatch.setattr(optuna.Trial, "should_prune", should_prune)
    with monkeypatch.context() as patch:
        if moment == "after it is told":
            patch.setattr("fedmuon.saved.save", save)
        assert tune(read(words)) == 1 and not faults
    tune(read(words))
    ((_, state, _, reported),) = trials("out", "fedavg")
    (run,) = (file.parent for file in Path("out").glob("*/summary.json"))
    assert state == optuna.trial.TrialState.PRUNED and [*reported] == [1, 2] and len(rows(run)) == 2
    assert OmegaConf.load(run / "summary.json").status == "pruned" and (run / "model.safetensors").exists()


@pytest.mark.parametrize(("value", "text"), [(0.99997, "0.99998"), (0.123441, "0.123441"), (0.56789, "0.5679")])
def test_a_value_of_four_digits_stays_in_its_range(value, text):
    found = Range(0.123441, 0.99998).suggest(optuna.trial.FixedTrial({"local.lr": value}), "local.lr")
    assert found == text


def test_a_folder_holds_one_search(tiny):
    words = [*tiny, "algorithm=fedavg", "n_trials=1", "federation.rounds=1", "space=space.yaml"]
    Path("space.yaml").write_text("local.lr: {low: 0.1, high: 0.2}")
    folder = read(words).folder
    assert tune(read([*words, "tune_dir=out"])) == tune(read([*words, "logger=csv", "tune_dir=out"])) == 0
    for other, told in [("seed=1", "seed was 0, now 1"), ("tune_seed=1", "tune_seed was 0"), ("prune=false", "prune")]:
        with pytest.raises(UsageError, match=rf"^tune_dir=out: holds another search of algorithm=fedavg \(.*{told}"):
            tune(read([*words, other, "tune_dir=out"]))
    Path("space.yaml").write_text("local.lr: {low: 0.1, high: 0.3}")
    with pytest.raises(UsageError, match=r"space of local\.lr was 0\.1 to 0\.2, now 0\.1 to 0\.3"):
        tune(read([*words, "tune_dir=out"]))
    assert read(words).folder != folder


def test_between_whole_numbers_a_key_that_is_none_takes_others():
    Path("space.yaml").write_text(
        "algorithm.alpha: {low: 0, high: 1}\nlocal.clip: {low: 1, high: 10}\nlocal.steps: {low: 1, high: 9}"
    )
    (search,) = read(["space=space.yaml"]).searches
    trial = optuna.trial.FixedTrial({"algorithm.alpha": 0.25, "local.clip": 2.5, "local.steps": 3})
    assert [one.suggest(trial, key) for key, one in search.space.items()] == ["0.25", "2.5", "3"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["algorithm=fedmoun"], r"^algorithm=fedmoun: .*did you mean 'fedmuon'"),
        (["algorithm=fedavg,fedavg"], r"^algorithm=fedavg,fedavg: names one twice"),
        (["n_trials=0"], r"^n_trials=0: must be a whole number, at least 1"),
        (["n_trails=4"], r"^n_trails=4: .*did you mean 'n_trials'"),
        (["local.lr=-1"], r"^local\.lr=-1"),
        (["data.validation=0"], r"^data\.validation=0.*validation split"),
        (["run_dir=x"], r"^run_dir: "),
        (["tune_dir=~no-such-user/x"], r"^tune_dir=~no-such-user/x: begins with a home that is not known"),
        (["space=nowhere.yaml"], r"^space=nowhere\.yaml: cannot be read"),
        (["space=~no-such-user/x"], r"^space=~no-such-user/x: cannot be read"),
        (["algorithm=scaffold", "local.lr=0.1"], r"default\.yaml: nothing is left to search"),
        ([f"tune_dir={__file__}"], r"^tune_dir=.*is a file; name a folder"),
        (["hydra.mode=RUN"], r"^hydra\.mode=RUN: is of the command fedmuon, .*leave it away"),
        (["hydra/launcher=joblib"], r"^hydra/launcher=joblib: is of the command fedmuon, .*no launcher"),
        (["+hydra.sweep.dir=x"], r"^\+hydra\.sweep\.dir=x: .*tune_dir="),
        (["prune=yes"], r"^prune=yes: must be true or false"),
    ],
)
def test_wrong_input_in_one_line(words, line):
    with pytest.raises(UsageError, match=line) as caught:
        read(words)
    assert "\n" not in str(caught.value) and not any(Path().iterdir())


@pytest.mark.parametrize(
    "space",
    [
        "local.lr: 3",
        "local.lr: {low: 1, high: 0.1}",
        "nope.lr: {low: 0.1, high: 1}",
        "- 1",
        "local.lr: {values: 3}",
        "\xff",
    ],
)
def test_a_space_that_is_none(space):
    Path("space.yaml").write_text(space, encoding="latin-1")
    with pytest.raises(UsageError, match=r"^space\.yaml: "):
        read(["space=space.yaml"])


def test_options_between_the_keys(monkeypatch, capfd):
    monkeypatch.setattr("sys.argv", ["fedmuon-tune", "algorithm=fedavg", "-cd", "nowhere", "n_trials=4"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2 and capfd.readouterr().err.startswith("fedmuon-tune: --config-dir nowhere: ")


def test_every_algorithm_has_a_space_that_its_configuration_knows():
    for file in (CONF / "algorithm").glob("*.yaml"):
        (search,) = read([f"algorithm={file.stem}", "partition.concentration=1"]).searches
        assert search.space and len(os.fspath(search.folder)) > 5
        assert search.start, f"{file.stem}: its own constants are outside of what is searched"
