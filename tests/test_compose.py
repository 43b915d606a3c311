"""From overrides to a checked job: what is saved, what names a run, what a sweep expands to."""

from dataclasses import dataclass
from typing import Literal

import pytest
from omegaconf import OmegaConf

from fedmuon import resuming
from fedmuon.algorithms.muon import Muon
from fedmuon.algorithms.sgd import SGD
from fedmuon.cli import checked_jobs
from fedmuon.errors import UsageError
from fedmuon.job import digest, identity, label
from fedmuon.selection import way
from fedmuon.typed import typed


def job(*overrides: str):
    (found,) = checked_jobs(overrides)
    return found


def test_a_job_is_typed_and_saved_resolved():
    found = job("algorithm.alpha=0.25", "seed=7", "local.lr=1", "federation.cohort=0.5", "local.epochs=1")
    config = found.config
    assert isinstance(config.algorithm, Muon) and config.algorithm.alpha == 0.25 and config.seed == 7
    assert config.local.lr == 1.0 and isinstance(config.local.lr, float) and config.federation.cohort == 0.5
    text = OmegaConf.to_yaml(found.saved)
    assert "${" not in text and "hydra" not in OmegaConf.create(text)
    assert found.saved.partition.seed == found.saved.model.seed == found.saved.data.seed == 7
    assert found.saved.algorithm.name == "fedmuon" and found.saved.model.name == "lenet5"


def test_an_algorithm_brings_its_rate_and_its_server_and_can_be_overridden():
    assert job("algorithm=fedavg").config.local.lr == 0.1 and job("algorithm=fedmuon").config.local.lr == 0.01
    assert job("algorithm=fedadam").config.server.kind == "adam"
    assert job("local.lr=0.3", "algorithm=fedavg").config.local.lr == 0.3
    assert job("algorithm=fedadam", "server=yogi").config.server.kind == "yogi"
    assert (
        job("algorithm=local_muon").config.algorithm.a == 0 and not job("algorithm=local_muon").config.algorithm.shared
    )


def test_the_published_preset_is_what_the_issue_lists():
    found = job("algorithm=fedmuon_published").config
    rule = found.algorithm
    assert (rule.ema, rule.nesterov, rule.beta, rule.shape_scale, rule.weight_decay, found.local.clip) == (
        True,
        True,
        0.98,
        "kernel",
        0.01,
        10,
    )
    assert rule.polar.method == "newton_schulz" and rule.polar.dtype == "bfloat16" and rule.lr_scale != 1


def test_integers_may_be_written_as_floats_only_where_they_are_floats():
    assert job("local.lr=1e-3").config.local.lr == 0.001
    assert job("federation.cohort=10").config.federation.cohort == 10 and isinstance(
        job("federation.cohort=1.0").config.federation.cohort, float
    )


def test_epochs_instead_of_steps_in_either_spelling():
    assert job("local.epochs=2", "local.steps=null").config.local.epochs == 2.0
    assert job("local.epochs=2").config.local.epochs == 2.0


def test_where_and_how_it_is_watched_does_not_make_another_run():
    one, other = (
        job("seed=1", "logger=none"),
        job("seed=1", "logger=csv", "run_dir=/tmp/absent-run", "checkpoint.every=5"),
    )
    assert digest(identity(one.saved)) == digest(identity(other.saved))
    assert digest(identity(one.saved)) != digest(identity(job("seed=1", "local.lr=0.3").saved))
    assert label(one.saved) == "fedmuon-fashion_mnist_mini-dirichlet-seed1"


def test_a_sweep_is_the_product_in_order_with_a_folder_each():
    jobs = checked_jobs(["algorithm=fedavg,fedmuon", "seed=range(0,3)", "hydra.sweep.dir=out"], multirun=True)
    assert [(j.saved.algorithm.name, j.config.seed) for j in jobs] == [
        (a, s) for a in ("fedavg", "fedmuon") for s in range(3)
    ]
    assert len({j.folder for j in jobs}) == 6 and all(str(j.folder).startswith("out/") for j in jobs)
    again = checked_jobs(["algorithm=fedavg,fedmuon", "seed=range(0,3)", "hydra.sweep.dir=out"], multirun=True)
    assert [j.folder for j in jobs] == [j.folder for j in again]


def test_a_sweeper_s_params_can_be_added_to():
    jobs = checked_jobs(["+hydra.sweeper.params.seed='0,1'", "hydra.sweep.dir=out"], multirun=True)
    assert [job.config.seed for job in jobs] == [0, 1]


def test_a_key_that_is_given_and_swept_tells_runs_apart():
    jobs = checked_jobs(["model=mlp", "model.hidden=[8]", "model.hidden=[4],[8]"], multirun=True)
    assert [job.name for job in jobs] == ["model.hidden=[4]", "model.hidden=[8]"]


def test_several_loggers_at_once():
    assert list(job("logger=[tensorboard,csv]").config.logger) == ["tensorboard", "csv"]
    assert job("logger=none").config.logger == {}


def test_debug_is_short_whatever_else_is_asked_for():
    found = job("debug=fast", "algorithm=fedavg").config
    assert (found.federation.rounds, found.federation.cohort, found.logger) == (2, 2, {})


@pytest.mark.parametrize("metric, mode", [("accuracy", "max"), ("loss", "min")])
def test_which_way_is_better_follows_from_the_metric(metric: str, mode: str):
    found = job(f"evaluation.metric={metric}", "callbacks=early_stopping")
    assert found.config.evaluation.mode == found.saved.evaluation.mode == mode
    assert found.saved.callbacks.early_stopping.mode == mode
    assert job(f"evaluation.metric={metric}", "evaluation.mode=null").config.evaluation.mode == mode
    with pytest.raises(UsageError, match=rf"^evaluation\.mode=\w+: evaluation\.metric={metric} is better where it is"):
        job(f"evaluation.metric={metric}", f"evaluation.mode={'min' if mode == 'max' else 'max'}")


def test_the_split_before_a_metric_is_the_validation_or_refused():
    evaluation = job("evaluation.metric=val_loss", "callbacks=early_stopping").saved
    assert (evaluation.evaluation.metric, evaluation.evaluation.mode) == ("loss", "min")
    assert evaluation.callbacks.early_stopping.monitor == "val/loss"
    with pytest.raises(UsageError, match=r"^evaluation\.metric=test_loss: must be one of accuracy, loss"):
        job("evaluation.metric=test_loss")


def test_names_of_metrics_that_tell_which_way_is_better():
    assert [way(name) for name in ("top5_acc", "MulticlassAccuracy", "MSELoss", "word-error")] == [
        *("max", "max", "min", "min")
    ]
    assert way("f1") is way("account") is way("accuracy_loss") is None


def test_texts_of_the_environment_are_what_they_stand_for(monkeypatch):
    monkeypatch.setenv("SEED", "3")
    monkeypatch.setenv("TARGET", "0.5")
    monkeypatch.setenv("DROP", "true")
    given = ("evaluation.targets=[${oc.env:TARGET}]", "local.drop_last=${oc.env:DROP}")
    one, other = job("seed=${oc.env:SEED}", *given), job("seed=3", "evaluation.targets=[0.5]", "local.drop_last=true")
    assert one.saved == other.saved and digest(identity(one.saved)) == digest(identity(other.saved))


def test_folders_are_named_as_they_are_written(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert job("run_dir=2024_01_15").config.run_dir == "2024_01_15" and job("run_dir=7").saved.run_dir == "7"
    (made,) = checked_jobs(["hydra.sweep.dir=2024_01_15"], multirun=True)
    assert str(made.folder).startswith("2024_01_15/")
    (made,) = checked_jobs(["hydra.sweep.dir='~/out'"], multirun=True)
    assert str(made.folder).startswith(f"{tmp_path}/out/")
    (tmp_path / "2024_01_15").mkdir()
    with pytest.raises(UsageError, match=r"^resume=2024_01_15: is no run directory"):
        job("resume=2024_01_15")
    with pytest.raises(UsageError, match=rf"^resume={tmp_path}/2024_01_15: is no run directory"):
        job("resume='~/2024_01_15'")
    (tmp_path / "taken").write_text("[[0]]")
    with pytest.raises(UsageError, match=rf"^run_dir={tmp_path}/taken: {tmp_path}/taken is a file"):
        job("run_dir='~/taken'")
    with pytest.raises(UsageError, match=rf"^run_dir={tmp_path}/taken: {tmp_path}/taken is a file"):
        job("run_dir=~/taken")
    (made,) = checked_jobs(["hydra.sweep.dir=~/it's"], multirun=True)
    assert str(made.folder).startswith(f"{tmp_path}/it's/")
    with pytest.raises(UsageError, match=r"^data\.root=~/b: there is no such folder"):
        checked_jobs(["data.root=~/b,~/c"], multirun=True)
    found = job("partition=file", "partition.path='~/taken'")
    assert found.config.partition.path == f"{tmp_path}/taken" and found.saved.partition.path == "~/taken"


def test_an_option_in_a_folder_names_no_folder(tmp_path):
    (tmp_path / "algorithm" / "mine").mkdir(parents=True)
    text = "# @package algorithm\n_target_: fedmuon.algorithms.sgd.SGD\n"
    (tmp_path / "algorithm" / "mine" / "v1.yaml").write_text(text)
    (made,) = checked_jobs(["algorithm=mine/v1"], config_dir=str(tmp_path))
    assert label(made.saved) == "mine_v1-fashion_mnist_mini-dirichlet-seed0"


def test_steps_that_are_taken_away_leave_epochs():
    assert job("~local.steps", "local.epochs=1").config.local.epochs == 1.0


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"a: [\n", r"mine\.yaml:2: is no YAML \(expected the node content"),
        (b"a: 1\na: 2\n", r"mine\.yaml:2: is no YAML \(found duplicate key a\)"),
        (b"a: \x07\n", r"mine\.yaml: is no YAML \(unacceptable character"),
        (b"a: \xff\n", r"mine\.yaml: is no text in UTF-8"),
    ],
)
def test_a_file_of_ones_own_that_cannot_be_read_is_named(tmp_path, content, told):
    (tmp_path / "algorithm").mkdir()
    (tmp_path / "algorithm" / "mine.yaml").write_bytes(content)
    with pytest.raises(UsageError, match=rf"^{tmp_path}/algorithm/{told}"):
        checked_jobs(["algorithm=mine"], config_dir=str(tmp_path))


_MODEL = "_target_: fedmuon.models.MLP\nhidden: "


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("model/mine.yaml", f"{_MODEL}???", r"^model\.hidden: must be given; write model\.hidden=VALUE$"),
        ("model/mine.yaml", f"{_MODEL}${{modell.x}}", r"^model\.hidden: there is no key 'modell\.x'"),
        ("model/mine.yml", f"{_MODEL}[8]", r"^model=mine: only files that end in \.yaml are read; .*/model/mine\.yml$"),
        (
            "experiment/mine.yaml",
            "# @package _global_\nevaluation: [1]",
            r"^experiment/mine: has a list in the place of a group",
        ),
        ("experiment/mine.yaml", "local: {steps: 3}", r"^experiment=mine: .*begin with the line '# @package _global_'"),
    ],
)
@pytest.mark.filterwarnings("ignore:Support for .yml files")
def test_what_is_wrong_in_a_file_of_ones_own_names_its_key_or_option(tmp_path, file, content, told):
    path = tmp_path / file
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(UsageError, match=told):
        checked_jobs([f"{path.parent.name}=mine", "seed=1"], config_dir=str(tmp_path))


def test_what_a_file_of_ones_own_leaves_to_be_given_a_resumed_run_has(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text(f"{_MODEL}???")
    (job,) = checked_jobs(["model=mine", "model.hidden=[8]"], config_dir=str(tmp_path))
    (tmp_path / "run").mkdir()
    OmegaConf.save(job.saved, tmp_path / "run" / "config.yaml")
    given = resuming.choices(["resume=run"], str(tmp_path))
    (again,) = checked_jobs([*given, "resume=run"], config_dir=str(tmp_path))
    assert "model=mine" in given and again.config.model.hidden == [8]


@dataclass(frozen=True)
class Worded(SGD):
    kind: Literal["a", "b"] = "a"


def test_a_type_that_a_configuration_has_not_is_told():
    with pytest.raises(UsageError, match=r"^algorithm\.kind: its type Literal\[a, b\] .*kind: str = choice\("):
        typed(Worded, {}, "algorithm.")
