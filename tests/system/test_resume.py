"""A run that stopped goes on as if it had not: bit for bit, at any round, killed at any moment."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

import fedmuon
from fedmuon.cli import checked_jobs
from fedmuon.command import prepare_process
from fedmuon.compose import Composer
from fedmuon.errors import UsageError
from fedmuon.evaluate import evaluate
from fedmuon.experiment import RunFailed
from fedmuon.resuming import continued
from tests.system.runs import assert_same_run, command, rows, sweep_here, write_images
from tests.system.tasks import Classifier, blobs

ROUNDS = 4


@pytest.mark.parametrize(
    "keys", ["algorithm=fedmuon", "algorithm=fedadam", "algorithm=fedavg engine=stacked model.hidden=[200,200]"]
)
def test_stopped_after_any_round(tiny, keys):
    overrides = [*tiny, *keys.split(), "local.schedule=cosine", f"local.schedule_rounds={ROUNDS}"]
    whole = fedmuon.run([*overrides, f"federation.rounds={ROUNDS}", "run_dir=whole"]).path
    for stop in range(1, ROUNDS):
        run = fedmuon.run([*overrides, f"federation.rounds={stop}", f"run_dir=stopped{stop}"]).path
        summary, path = fedmuon.run([f"resume={run}", f"federation.rounds={ROUNDS}"])
        assert path == run and summary["rounds"] == ROUNDS and summary["status"] == "finished"
        assert_same_run(whole, run)


def test_resumed_past_the_end_keeps_the_schedules_first_total_and_says_so(tiny, capsys):
    run = fedmuon.run([*tiny, "local.schedule=cosine", "local.lr=0.02", "run_dir=run"]).path
    assert "at rate 0" not in capsys.readouterr().out
    fedmuon.run([f"resume={run}", "federation.rounds=5"])
    assert "local.schedule=cosine: rounds 4 to 5 train at rate 0" in capsys.readouterr().out
    rates = [row["train/lr"] for row in rows(run)]
    assert rates == pytest.approx([0.02, 0.015, 0.005, 0, 0]) and len(rates) == 5
    assert OmegaConf.load(run / "config.yaml").federation.rounds == 5


def test_a_finished_run_is_only_read(tiny):
    first, path = fedmuon.run([*tiny, "run_dir=run"])
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    again, _ = fedmuon.run([f"resume={path}"])
    assert again == first and before == {file: file.stat().st_mtime_ns for file in path.rglob("*")}


def test_a_run_of_an_earlier_version_goes_on(tiny):
    run = fedmuon.run([*tiny, "run_dir=run"]).path
    old = OmegaConf.load(run / "config.yaml")
    old.trainer.devices, old.data.labels = 1, None
    OmegaConf.save(old, run / "config.yaml")
    assert fedmuon.run([f"resume={run}", "federation.rounds=4"]).summary["rounds"] == 4
    new = OmegaConf.load(run / "config.yaml")
    assert "devices" not in new.trainer and "labels" not in new.data


def test_fewer_rounds_than_are_done_leave_the_run_alone(tiny):
    run = fedmuon.run([*tiny, "run_dir=run"]).path
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "status": "interrupted"}))
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    with pytest.raises(UsageError, match=r"^federation\.rounds=2: .* has 3 rounds behind it; must be at least 3$"):
        fedmuon.run([f"resume={run}", "federation.rounds=2"])
    assert before == {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    assert fedmuon.run([f"resume={run}", "federation.rounds=3"]).summary["status"] == "finished"


def test_checkpoints_every_other_round_lose_no_more_than_that(tiny):
    overrides = [*tiny, "checkpoint.every=2"]
    whole = fedmuon.run([*overrides, "federation.rounds=5", "run_dir=whole"]).path
    run = fedmuon.run([*overrides, "federation.rounds=3", "run_dir=run"]).path
    assert torch.load(run / "checkpoints" / "last.ckpt", weights_only=False)["global_step"] == 3
    fedmuon.run([f"resume={run}", "federation.rounds=5"])
    assert_same_run(whole, run)


def test_a_beginning_again_that_fails_can_begin_again(tiny, monkeypatch):
    """Before its first checkpoint; checkpoints were to be rarer then."""
    run = fedmuon.run([*tiny, "checkpoint.every=9", "federation.rounds=3", "run_dir=run"]).path
    shutil.rmtree(run / "checkpoints")
    (run / "model.safetensors").unlink()
    (run / "summary.json").unlink()
    with monkeypatch.context() as broken:
        broken.setattr("fedmuon.loggers.built", fails)
        with pytest.raises(RunFailed, match="no logger"):
            fedmuon.run([f"resume={run}", "checkpoint.every=1"])
    assert fedmuon.run([f"resume={run}"]).summary["rounds"] == 3


def fails(*_):
    raise RuntimeError("no logger")


def test_lines_cut_short_and_lines_beyond_the_checkpoint_are_cut_back(tiny):
    whole = fedmuon.run([*tiny, "federation.rounds=4", "run_dir=whole"]).path
    run = fedmuon.run([*tiny, "federation.rounds=2", "run_dir=run"]).path
    for name in ("metrics.jsonl", "clients.jsonl"):
        with (run / name).open("a") as file:
            file.write('{"round": 3, "client": 0, "left": "over"}\n{"round": 4, "tra')
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "status": "running"}))
    fedmuon.run([f"resume={run}", "federation.rounds=4"])
    assert_same_run(whole, run)


def test_wandb_offline_included(tiny):
    plain = fedmuon.run([*tiny, "run_dir=plain"]).path
    run = fedmuon.run([*tiny, "logger=wandb", "federation.rounds=2", "run_dir=run"]).path
    fedmuon.run([f"resume={run}", "federation.rounds=3"])
    assert_same_run(plain, run)
    folders = [folder.name for folder in (run / "wandb").glob("offline-run-*")]
    assert len(folders) == 2 and len({name.rsplit("-", 1)[1] for name in folders}) == 1  # one id: the sync merges them


def test_a_run_that_was_killed_at_random_moments(tiny):
    overrides = [*tiny, "federation.rounds=40", "engine.chunk=1"]
    whole = fedmuon.run([*overrides, "run_dir=whole"]).path
    moments = random.Random(0)
    args = [*overrides, "run_dir=killed"]
    kills = 0
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-m", "fedmuon", *args], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        metrics = Path("killed/metrics.jsonl")
        seen = len(metrics.read_bytes()) if metrics.exists() else 0
        while process.poll() is None and (not metrics.exists() or len(metrics.read_bytes()) <= seen):
            time.sleep(0.001)
        time.sleep(moments.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        process.stderr.close()
        args = ["resume=killed"]
    assert kills == 3
    assert json.loads(Path("killed/summary.json").read_text())["status"] == "running"
    fedmuon.run(["resume=killed"])
    assert_same_run(whole, Path("killed"))
    assert not [path for path in Path("killed").rglob(".*") if path.is_file()], "half-written files stay behind"


def test_an_interruption_says_how_to_go_on(tiny):
    whole = fedmuon.run([*tiny, "federation.rounds=60", "run_dir=whole"]).path
    process = subprocess.Popen(
        [sys.executable, "-m", "fedmuon", *tiny, "federation.rounds=60", "run_dir=run"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not Path("run/checkpoints/last.ckpt").exists():
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130 and "resume=run" in errors and "Traceback" not in errors
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["status"] == "interrupted" and "cause" not in summary
    fedmuon.run(["resume=run"])
    assert_same_run(whole, Path("run"))


def test_an_interruption_that_is_swallowed_ends_the_run_before_its_next_round(tiny):
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        prepare_process()
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt, match="resume=run"):
            fedmuon.run([*tiny, "run_dir=run"])
    finally:
        prepare_process()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert not Path("run/metrics.jsonl").exists() and fedmuon.run(["resume=run"]).summary["status"] == "finished"


@pytest.fixture(scope="module")
def finished(images, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    overrides = [
        f"data.root={images}",
        "model=mlp",
        "model.hidden=[8]",
        "federation.clients=6",
        "federation.cohort=3",
        "federation.rounds=1",
    ]
    return fedmuon.run(
        [*overrides, "local.steps=1", "logger=none", "trainer.accelerator=cpu", f"run_dir={folder / 'run'}"]
    ).path


@pytest.mark.parametrize(
    "override",
    [
        "algorithm=fedavg",
        "algorithm.alpha=0.1",
        "local.lr=0.5",
        "seed=3",
        "model.hidden=[9]",
        "federation.cohort=2",
        "partition=iid",
        "data.validation=0.2",
    ],
)
def test_a_key_that_must_not_change(finished, override):
    key = override.split("=")[0]
    with pytest.raises(UsageError) as caught:
        fedmuon.run([f"resume={finished}", "federation.rounds=2", override])
    line = str(caught.value)
    assert line.startswith(f"{key}=") and "another configuration" in line and "\n" not in line


def test_what_is_added_refers_to_the_runs_own_keys(tiny, monkeypatch):
    monkeypatch.setenv("SEED", "3")
    keys = ["evaluation.metric=loss", "seed=${oc.env:SEED}", "federation.rounds=1", "run_dir=run"]
    run = fedmuon.run([*tiny, *keys]).path
    saved = OmegaConf.load(run / "config.yaml")
    assert saved.seed == saved.model.seed == 3
    (job,) = checked_jobs([f"resume={run}", "callbacks=early_stopping", "seed=3", "model.seed=${oc.env:SEED}"])
    assert (job.saved.callbacks.early_stopping.monitor, job.saved.callbacks.early_stopping.mode) == ("val/loss", "min")
    assert job.config.seed == job.saved.model.seed == 3
    with pytest.raises(UsageError, match=r"nope"):
        checked_jobs([f"resume={run}", "trainer.max_time=${nope}"])


def test_a_key_that_is_given_as_it_was_may_be_given_again(finished):
    keys = ["federation.cohort=3", "seed=0", "model=mlp", "algorithm=fedmuon", "evaluation.metric=val_accuracy"]
    summary, _ = fedmuon.run([f"resume={finished}", *keys, "evaluation.mode=null"])
    assert summary["status"] == "finished"


def test_the_mode_that_the_metrics_name_says_is_that_of_the_runs_own_metric(finished):
    Path("run").mkdir()
    saved = OmegaConf.load(finished / "config.yaml")
    for metric, mode, told in [("loss", "min", ""), ("f1", "max", r"another configuration, evaluation\.mode=max;")]:
        saved.evaluation.metric, saved.evaluation.mode = metric, mode
        OmegaConf.save(saved, "run/config.yaml")
        with pytest.raises(UsageError, match=told) if told else nullcontext():
            continued(Composer().compose(["resume=run"]), Path("run"), ["evaluation.mode=null"])


def test_a_run_whose_data_has_moved_goes_on_and_can_be_evaluated(tiny, images, tmp_path):
    whole = fedmuon.run([*tiny, "run_dir=whole"]).path
    shutil.copytree(images, tmp_path / "old")
    run = fedmuon.run([*tiny, f"data.root={tmp_path / 'old'}", "federation.rounds=2", "run_dir=run"]).path
    (tmp_path / "old").rename(tmp_path / "new")
    fedmuon.run([f"resume={run}", "federation.rounds=3", f"data.root={tmp_path / 'new'}"])
    assert_same_run(whole, run)
    (tmp_path / "new").rename(tmp_path / "newer")
    assert evaluate(run, root=tmp_path / "newer") == evaluate(whole)


def test_a_run_whose_lists_have_moved_goes_on_and_can_be_evaluated(tiny):
    lists = [list(range(20 * client, 20 * client + 20)) for client in range(6)]
    Path("lists.json").write_text(json.dumps(lists))
    kept = [o for o in tiny if not o.startswith("partition.")]
    keys = [*kept, "partition=file", "partition.path=lists.json", "run_dir=run", "federation.rounds=1"]
    run = fedmuon.run(keys).path
    Path("lists.json").unlink()
    assert fedmuon.load(run) is not None and set(evaluate(run)) == {"val", "test"}
    assert fedmuon.run([f"resume={run}", "federation.rounds=2"]).summary["rounds"] == 2
    with pytest.raises(UsageError, match=r"^partition\.path=lists\.json: there is no such file"):
        checked_jobs([*keys[:-2], "run_dir=other"])


def test_other_data_than_the_runs_own_is_refused(finished, images, tmp_path):
    (tmp_path / "other").mkdir()
    shutil.copy(images / "test.parquet", tmp_path / "other" / "train.parquet")
    shutil.copy(images / "train.parquet", tmp_path / "other" / "test.parquet")
    for act in (
        lambda root: fedmuon.run([f"resume={finished}", "federation.rounds=2", f"data.root={root}"]),
        lambda root: evaluate(finished, root=root),
    ):
        with pytest.raises(UsageError, match=r"^data\.root: holds another data set than the one that .*partition\.npz"):
            act(tmp_path / "other")


def test_other_images_with_the_same_labels_are_refused(finished, images, tmp_path):
    shutil.copy(images / "test.parquet", tmp_path / "test.parquet")
    write_images(tmp_path / "train.parquet", 240, seed=5)
    with pytest.raises(
        UsageError, match=r"^resume=.*: was trained on other samples .*\(data\.root=, in Python train=\)"
    ):
        fedmuon.run([f"resume={finished}", "federation.rounds=2", f"data.root={tmp_path}"])


def test_other_samples_with_the_same_labels_are_refused_in_python():
    x, y = blobs(200)
    x[0] = torch.tensor([torch.nan, torch.inf, 0, 0])
    lists = [range(1, 100), range(100, 200)]

    def federate(data, **keys):
        torch.manual_seed(0)
        task, where = Classifier(torch.nn.Linear(4, 3)), {"logger": "none", "trainer.accelerator": "cpu"}
        return fedmuon.federate(task, data, algorithm="fedavg", partition=lists, **where, **keys)

    federate((x, y), rounds=1, run_dir="run")
    before = Path("run/metrics.jsonl").read_text()
    for other in ((x.flip(1), y), (x, y, y), (torch.cat([x, x]), torch.cat([y, y]))):
        with pytest.raises(UsageError, match=r"^resume=run: was trained on other samples .*; give the same"):
            federate(other, rounds=2, resume="run")
    assert Path("run/metrics.jsonl").read_text() == before
    for rounds, same in ((2, x), (3, x * (1 + 1e-5))):  # as another processor may compute it
        assert federate((same, y), rounds=rounds, resume="run").summary["rounds"] == rounds


class Drawing:
    """Samples that are drawn while they are read."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.rand(4), index % 3


def test_what_is_drawn_while_data_is_read_is_the_resumed_runs_own():
    def federate(rounds, **keys):
        torch.manual_seed(0)
        task, where = Classifier(torch.nn.Linear(4, 3)), {"logger": "none", "trainer.accelerator": "cpu"}
        lists = [range(3), range(3, 6)]
        return fedmuon.federate(task, Drawing(), algorithm="fedavg", partition=lists, rounds=rounds, **where, **keys)

    whole, run = federate(2, seed=3, run_dir="whole"), federate(1, seed=3, run_dir="run")
    assert_same_run(federate(2, resume=run.path).path, whole.path)


@pytest.mark.parametrize("override", ["experiment=methods", "paper=clean", "debug=fast", "rates=main_fedavg"])
def test_a_key_that_stands_for_others_is_refused(finished, override):
    with pytest.raises(UsageError, match=rf"^{override}: is no key of a run"):
        checked_jobs([f"resume={finished}", override])


def test_keys_taken_away_and_options_with_other_keys(finished):
    """`finished` had no logger, model.hidden=[8] and local.steps=1."""

    def resumed(*overrides: str):
        return checked_jobs([f"resume={finished}", *overrides])[0].saved

    assert resumed("logger=[csv,wandb]", "~logger.wandb").logger.keys() == {"csv"}
    assert resumed("~logger.wandb").logger == {}
    assert resumed("logger.wandb.project=mine").logger.wandb._target_ == "fedmuon.loggers.wandb"
    Path("run").mkdir()
    (saved := OmegaConf.load(finished / "config.yaml")).engine.chunk = 2
    saved.logger = {"wandb": {"_target_": "fedmuon.loggers.wandb", "project": "a"}, "csv": {"_target_": "csv"}}
    OmegaConf.save(saved, "run/config.yaml")
    (job,) = checked_jobs(["resume=run", "engine=sequential", "~logger.wandb"])
    assert job.config.engine.chunk == 2 and job.saved.logger.keys() == {"csv"}
    for override, told in [
        ("engine=stacked", "engine=sequential"),
        ("engine.chunk=3", "engine.chunk=2"),
        ("local=default", "local.steps=1"),
        ("~federation.store", "federation.store=memory"),
    ]:
        with pytest.raises(UsageError, match=rf"belongs to another configuration, {told}[ ;,]"):
            checked_jobs(["resume=run", override])
    saved.trainer.precision = "64-true"
    OmegaConf.save(saved, "run/config.yaml")
    with pytest.raises(UsageError, match=r"belongs to another configuration, trainer\.precision=64-true;"):
        checked_jobs(["resume=run", "trainer=default"])


def test_run_dir_beside_resume(finished):
    with pytest.raises(UsageError, match=r"^run_dir=other: .*resume="):
        fedmuon.run([f"resume={finished}", "run_dir=other"])
    assert not Path("other").exists()


@pytest.mark.parametrize("damage", ["half", "text", "foreign", "state_dict", "other_model"])
def test_a_checkpoint_that_is_none(finished, damage):
    run = Path("run")
    shutil.copytree(finished, run)
    file = run / "checkpoints" / "last.ckpt"
    content = torch.load(file, weights_only=False)
    if damage == "half":
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    elif damage == "text":
        file.write_text("a checkpoint")
    elif damage == "foreign":
        torch.save({"epoch": 3, "global_step": 4, "state_dict": {}}, file)
    elif damage == "state_dict":
        torch.save(torch.nn.Linear(2, 2).state_dict(), file)
    else:
        content["state_dict"] = {name: torch.zeros(3, 3) for name in content["state_dict"]}
        torch.save(content, file)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=r"^resume=run: .*checkpoint") as caught:
        fedmuon.run(["resume=run", "federation.rounds=2"])
    assert "\n" not in str(caught.value)
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}, "the run was touched"


@pytest.mark.parametrize("config", ["", "- a\n- b\n", "seed: [\n", "seed: 1\n"])
def test_a_folder_whose_configuration_is_damaged(config):
    Path("run").mkdir()
    Path("run/config.yaml").write_text(config)
    with pytest.raises(UsageError) as caught:
        fedmuon.run(["resume=run"])
    assert "run" in str(caught.value) and "\n" not in str(caught.value)


def test_resume_with_options_of_ones_own(finished, capfd):
    Path("conf").mkdir()
    assert sweep_here("--config-dir", "conf", f"resume={finished}") == 0
    assert sweep_here(f"resume={finished}", "--config-dir", "conf", "federation.cohort=3") == 0
    assert capfd.readouterr().out.count("test accuracy") == 2


def test_a_run_of_federate_goes_on_from_python_only(finished, tmp_path):
    lists = [range(3), range(3, 6)]
    given = {"algorithm": "fedavg", "logger": "none", "trainer.accelerator": "cpu", "local.steps": 2}

    def federate(rounds, **where):
        torch.manual_seed(0)
        task = Classifier(torch.nn.Linear(4, 3))
        return fedmuon.federate(task, blobs(6), partition=lists, rounds=rounds, **given, **where).path

    whole, run = federate(2, run_dir="whole"), federate(1, run_dir="run")
    with pytest.raises(UsageError, match=r"^resume=run: is a run of fedmuon\.federate, .*resume='run'\)"):
        fedmuon.run([f"resume={run}", "federation.rounds=2"])
    assert_same_run(federate(2, resume=str(run)), whole)
    older = OmegaConf.load(run / "config.yaml")  # of a version that told nothing of module and data
    for node, key in ((older.data, "samples"), (older.data, "columns"), (older.model, "structure")):
        del node[key]
    OmegaConf.save(older, run / "config.yaml")
    assert federate(None, resume=str(run)) == run and OmegaConf.load(run / "config.yaml").federation.rounds == 2
    with pytest.raises(UsageError, match=r"is no run of fedmuon\.federate; go on with the command"):
        federate(2, resume=str(finished))


def test_resume_from_the_command_line_in_one_line(finished):
    done = command(f"resume={finished}", "seed=7")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stderr.startswith("fedmuon: seed=7: ")
    done = command(f"resume={os.getcwd()}")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "no run directory" in done.stderr
