"""The contract with Lightning: rounds are epochs, stock callbacks and loggers work, a setting has one owner."""

import csv
import dataclasses
import gc
import inspect
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from hydra.utils import get_object
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from omegaconf import OmegaConf

import fedmuon
from fedmuon import rundir
from fedmuon.build import built, load_data
from fedmuon.compose import CONF, Composer
from fedmuon.config import SCHEMAS, Trainer
from fedmuon.evaluate import evaluate
from fedmuon.experiment import RunFailed, execute
from fedmuon.job import checked_job
from fedmuon.owners import OWNERS
from fedmuon.typed import checked
from tests.system.runs import command, rows


class Counted(lightning.Trainer):
    """Counts how many Trainers are made."""

    made = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        Counted.made += 1
        super().__init__(*args, **kwargs)


def callbacks(tmp_path: Path, **nodes: dict[str, Any]) -> str:
    """A --config-dir with an option `callbacks=mine`."""
    folder = tmp_path / "conf" / "callbacks"
    folder.mkdir(parents=True)
    OmegaConf.save(OmegaConf.create(nodes), folder / "mine.yaml")
    return str(folder.parent)


@pytest.mark.parametrize("loop", ["validate", "test"])
def test_lightnings_own_loops_evaluate_the_global_model(loop, tiny):
    job = checked_job(Composer().compose([*tiny, "trainer.accelerator=cpu"]))
    trainer = lightning.Trainer(logger=False, accelerator="cpu", enable_progress_bar=False, enable_checkpointing=False)
    getattr(trainer, loop)(built(job.config, None).federation, verbose=False)
    assert {"val/accuracy", "val/loss", "test/accuracy", "test/loss"} <= set(trainer.callback_metrics)


def test_validation_of_a_round_is_that_of_its_checkpoint(tiny, tmp_path):
    node = {
        "_target_": "lightning.pytorch.callbacks.ModelCheckpoint",
        "dirpath": str(tmp_path / "kept"),
        "filename": "{epoch}",
        "save_top_k": -1,
        "monitor": "epoch",
    }
    run = fedmuon.run([*tiny, "callbacks=mine"], config_dir=callbacks(tmp_path, kept=node)).path
    files = sorted((tmp_path / "kept").glob("*.ckpt"))
    assert len(files) == 3
    config = checked(OmegaConf.load(run / "config.yaml"))
    test = load_data(config).test
    for row, file in zip(rows(run), files, strict=True):
        content = torch.load(file, weights_only=False)
        assert content["global_step"] == row["round"]
        weights = {n.split("network.")[1]: t for n, t in content["state_dict"].items() if "network." in n}
        network = fedmuon.load(run)
        network.load_state_dict(weights)
        with torch.no_grad():
            logits = network(test.batch(slice(None))[0])
        labels = test.batch(slice(None))[1]
        assert row["test/loss"] == pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item(), abs=1e-6)
        assert row["test/accuracy"] == pytest.approx((logits.argmax(1) == labels).double().mean().item(), abs=1e-7)


def test_a_progress_bar_of_lightning_s_may_be_had(tiny, tmp_path):
    node = {"_target_": "lightning.pytorch.callbacks.TQDMProgressBar"}
    run = fedmuon.run([*tiny, "callbacks=mine"], config_dir=callbacks(tmp_path, bar=node))
    assert run.summary["status"] == "finished" and run.summary["rounds"] == 3


def test_one_trainer_a_run_whose_global_step_is_the_number_of_rounds(tiny, monkeypatch):
    monkeypatch.setattr(lightning, "Trainer", Counted)
    Counted.made = 0
    run = fedmuon.run([*tiny, "engine.chunk=1", "federation.rounds=4"]).path
    assert Counted.made == 1
    content = torch.load(run / "checkpoints" / "last.ckpt", weights_only=False)
    assert content["global_step"] == 4 and content["epoch"] == 3


def test_early_stopping_stops(tiny):
    overrides = [
        *tiny,
        "callbacks=early_stopping",
        "callbacks.early_stopping.patience=2",
        "local.lr=0",
        "algorithm.adamw.lr=0",
        "federation.rounds=20",
    ]
    summary, run = fedmuon.run(overrides)
    assert summary["rounds"] == len(rows(run)) == 3 and summary["status"] == "finished"


class OverAfterABatch(Timer):
    """Time is over as soon as the first chunk of clients has been trained."""

    batches = 0

    def __init__(self) -> None:
        super().__init__({"seconds": 5})

    def time_elapsed(self, stage: str = "train") -> float:
        return 9.0 if self.batches else 0.0

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self.batches += 1
        super().on_train_batch_end(*args, **kwargs)


def test_time_that_is_over_between_chunks_ends_the_run_after_the_round(tiny):
    (job,) = fedmuon.cli.checked_jobs([*tiny, "engine.chunk=1", "run_dir=run"])
    summary, run = execute(job, callbacks=[OverAfterABatch()])
    (row,) = rows(run)
    assert summary["status"] == "timed_out" and row["train/trained"] == 3 and "test/accuracy" in row
    assert torch.load(run / "checkpoints" / "last.ckpt", weights_only=False)["global_step"] == 1


def test_a_checkpoint_of_ones_own_with_its_own_monitor(tiny, tmp_path):
    node = {
        "_target_": "lightning.pytorch.callbacks.ModelCheckpoint",
        "dirpath": str(tmp_path / "own"),
        "filename": "own",
        "monitor": "test/loss",
        "mode": "min",
    }
    run = fedmuon.run([*tiny, "callbacks=mine", "federation.rounds=5"], config_dir=callbacks(tmp_path, own=node)).path
    best = min(rows(run), key=lambda row: row["test/loss"])
    content = torch.load(tmp_path / "own" / "own.ckpt", weights_only=False)
    assert content["global_step"] == best["round"]
    assert {"last.ckpt", "best.ckpt"} == {file.name for file in (run / "checkpoints").iterdir()}


@pytest.mark.parametrize("node", [{"save_top_k": -1}, {"monitor": "val/accuracy", "mode": "max"}])
def test_a_stock_checkpoint_stands_beside_our_own(tiny, tmp_path, node):
    kept = {"_target_": "lightning.pytorch.callbacks.ModelCheckpoint", "dirpath": str(tmp_path / "kept"), **node}
    summary, _ = fedmuon.run([*tiny, "callbacks=mine"], config_dir=callbacks(tmp_path, kept=kept))
    assert summary["status"] == "finished" and list((tmp_path / "kept").glob("*.ckpt"))


def test_the_training_loss_can_be_monitored(tiny, tmp_path):
    node = {"_target_": "lightning.pytorch.callbacks.EarlyStopping", "monitor": "train/loss", "stopping_threshold": 1e9}
    summary, _ = fedmuon.run([*tiny, "callbacks=mine"], config_dir=callbacks(tmp_path, stop=node))
    assert summary["rounds"] == 1


def test_best_by_validation_is_in_the_summary_and_in_best_ckpt(tiny):
    summary, run = fedmuon.run([*tiny, "federation.rounds=5"])
    best = max(rows(run), key=lambda row: row["val/accuracy"])
    assert summary["best"]["round"] == best["round"] and summary["best"]["test/accuracy"] == best["test/accuracy"]
    assert torch.load(run / "checkpoints" / "best.ckpt", weights_only=False)["global_step"] == best["round"]
    assert summary["last"]["round"] == 5


def test_a_run_that_has_moved_knows_its_best_round(tiny):
    run = fedmuon.run([*tiny, "federation.rounds=2", "run_dir=run"]).path
    content = torch.load(run / "checkpoints" / "last.ckpt", weights_only=False)
    (best,) = (state for key, state in content["callbacks"].items() if key.startswith("BestCheckpoint"))
    best.update(best_model_score=torch.tensor(2.0), kth_value=torch.tensor(2.0))  # nothing will be better
    best["best_k_models"] = {path: torch.tensor(2.0) for path in best["best_k_models"]}
    torch.save(content, run / "checkpoints" / "last.ckpt")
    run = run.rename("moved")
    before = (run / "checkpoints" / "best.ckpt").read_bytes()
    fedmuon.run([f"resume={run}", "federation.rounds=6"])
    assert (run / "checkpoints" / "best.ckpt").read_bytes() == before
    assert {file.name for file in (run / "checkpoints").iterdir()} == {"last.ckpt", "best.ckpt"}


def test_without_a_validation_split_nothing_is_selected_and_that_is_said(tiny):
    summary, run = fedmuon.run([*tiny, "data.validation=0"])
    assert summary["best"] is None and summary["selection"].startswith("none")
    assert not any(key.startswith("val/") for row in rows(run) for key in row) and "test/accuracy" in rows(run)[-1]
    assert {file.name for file in (run / "checkpoints").iterdir()} == {"last.ckpt"}
    assert set(evaluate(run)) == {"test"}


def test_evaluation_every_other_round(tiny, recwarn):
    summary, run = fedmuon.run([*tiny, "trainer.check_val_every_n_epoch=2", "federation.rounds=5"])
    assert [row["round"] for row in rows(run) if "val/accuracy" in row] == [2, 4]
    assert summary["rounds"] == 5 and summary["last"]["round"] == 4 and summary["best"]["round"] in (2, 4)
    assert not [w for w in recwarn if "could not find the monitored key" in str(w.message)]


class Rounds(CSVLogger):
    """A user's own logger: keeps its calls."""

    calls: list[tuple[int | None, dict[str, float]]] = []  # noqa: RUF012
    finalized: list[str] = []  # noqa: RUF012

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        Rounds.calls.append((step, dict(metrics)))

    def finalize(self, status: str) -> None:
        Rounds.finalized.append(status)


def own_logger(run: Path, identity: str, greeting: str) -> Rounds:
    assert greeting == "hello" and identity
    return Rounds(run)


def test_loggers_get_each_round_once_with_the_round_as_step(tiny, tmp_path):
    (tmp_path / "conf" / "logger").mkdir(parents=True)
    (tmp_path / "conf" / "logger" / "mine.yaml").write_text(
        "mine:\n  _target_: tests.system.test_lightning.own_logger\n  greeting: hello\n"
    )
    overrides = [f"logger={'mine' if o == 'logger=none' else ''}" if o.startswith("logger=") else o for o in tiny]
    own = get_object("tests.system.test_lightning.Rounds")  # pytest may hold this module by another name
    own.calls.clear()
    own.finalized.clear()
    run = fedmuon.run([*overrides, "engine.chunk=1"], config_dir=str(tmp_path / "conf")).path
    assert [step for step, _ in own.calls] == [1, 2, 3]
    for (_, metrics), row in zip(own.calls, rows(run), strict=True):
        assert {k: v for k, v in metrics.items() if not k.startswith("time/")} == row
        assert {
            "train/loss",
            "val/accuracy",
            "test/loss",
            "comm/up_bytes",
            "aggregation/drift",
            "aggregation/update_norm",
        } <= metrics.keys()
    assert own.finalized and set(own.finalized) == {"success"}


def test_tensorboard_has_the_round_on_its_axis(tiny):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = fedmuon.run([o if o != "logger=none" else "logger=[tensorboard,csv]" for o in tiny]).path
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    scalars = events.Scalars("test/accuracy")
    assert [event.step for event in scalars] == [1, 2, 3]
    assert [event.value for event in scalars] == pytest.approx([row["test/accuracy"] for row in rows(run)])
    assert len((run / "csv" / "metrics.csv").read_text().splitlines()) == 4


def test_a_csv_file_keeps_the_rounds_before_a_resumption(tiny):
    overrides = [o if o != "logger=none" else "logger=csv" for o in tiny]
    run = fedmuon.run([*overrides, "federation.rounds=2", "local.lr=0.03", "run_dir=run"]).path
    fedmuon.run([f"resume={run}", "federation.rounds=3"])
    with (run / "csv" / "metrics.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["step"] for line in lines] == ["1", "2", "3"]
    assert [float(line["test/loss"]) for line in lines] == [row["test/loss"] for row in rows(run)]


def test_a_task_of_slurm_is_a_run_like_any_other(tiny):
    overrides = [o if o != "logger=none" else "logger=csv" for o in tiny]
    done = command(*overrides, "run_dir=run", SLURM_NTASKS="4", SLURM_JOB_NAME="x", SLURM_PROCID="2")
    assert done.returncode == 0, done.stderr
    assert len(Path("run/csv/metrics.csv").read_text().splitlines()) == 4


def test_a_disk_that_is_full_at_the_end_is_a_failure_and_every_logger_is_closed(tiny, monkeypatch, capsys):
    closed = []

    def write_json(path: Path, content: Any) -> None:
        if path.name == "summary.json" and content["status"] != "running":
            raise OSError(28, "No space left on device", str(path))
        written(path, content)

    def broken(self: Any, status: str) -> None:
        if status == "failed":
            raise OSError(28, "No space left on device")

    written = rundir.write_json
    monkeypatch.setattr(rundir, "write_json", write_json)
    monkeypatch.setattr(CSVLogger, "finalize", broken)
    monkeypatch.setattr(TensorBoardLogger, "finalize", lambda self, status: closed.append(status))
    with pytest.raises(RunFailed, match=r"^run: .*No space left on device"):
        fedmuon.run([*tiny[:-1], "logger=[csv,tensorboard]", "run_dir=run"])
    assert set(closed) >= {"failed"}
    assert "fedmuon: CSVLogger could not be closed (OSError: [Errno 28] No space" in capsys.readouterr().err


def test_every_argument_of_the_trainer_has_one_owner():
    schema = {field.name for field in dataclasses.fields(Trainer)}
    signature = set(inspect.signature(lightning.Trainer.__init__).parameters) - {"self"}
    assert not schema & OWNERS.keys()
    assert schema | OWNERS.keys() == signature


@pytest.mark.parametrize("argument", OWNERS)
def test_an_owned_argument_names_its_owner(argument):
    cfg = Composer().compose([f"+trainer.{argument}=1"])
    with pytest.raises(fedmuon.UsageError, match=f"^trainer.{argument}: is not set here; use "):
        checked_job(cfg)


@pytest.mark.parametrize(
    "file",
    sorted(f for f in CONF.rglob("*.yaml") if f.parent.parent == CONF and f.parent.name != "tune"),
    ids=lambda f: f"{f.parent.name}={f.stem}",
)
def test_every_option_composes_to_what_its_schema_allows(file):
    needed = ("data", "partition", "sampler", "paper")
    group, option = file.parent.name, file.stem
    key = "partition." if group == "paper" else f"{group}."  # a protocol needs the lists of its partition
    said = key
    try:
        checked_job(Composer().compose([f"{group}={option}"]))
    except fedmuon.UsageError as error:
        said = str(error)
        if group not in needed:
            raise
    assert said.startswith(key)  # options that need a file or folder say which key names it


def test_every_target_of_the_configuration_exists():
    for target in SCHEMAS:
        assert callable(get_object(target)), target


def test_nothing_of_a_run_is_held_afterwards(tiny):
    fedmuon.run(tiny)
    gc.collect()
    trainers = [o for o in gc.get_objects() if isinstance(o, lightning.Trainer)]
    assert not trainers
