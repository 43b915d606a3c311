"""What a run leaves: the files, the final model, and an evaluation that agrees with the last row."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from safetensors import safe_open

import fedmuon
from fedmuon.errors import UsageError
from fedmuon.evaluate import evaluate, main
from fedmuon.experiment import execute
from tests.system.runs import CLASSES, command, rows
from tests.system.tasks import Classifier, blobs


@pytest.fixture(scope="module")
def run(images, tmp_path_factory) -> Path:
    overrides = [f"data.root={images}", "model=mlp", "model.hidden=[8]", "federation.clients=6", "federation.cohort=3"]
    overrides += ["federation.rounds=3", "local.steps=2"]
    folder = tmp_path_factory.mktemp("saved") / "run"
    return fedmuon.run([*overrides, "logger=none", "trainer.accelerator=cpu", f"run_dir={folder}"]).path


def test_the_directory_holds_what_the_design_lists(run):
    names = {path.name for path in run.iterdir()}
    assert names == {
        "config.yaml",
        "metrics.jsonl",
        "clients.jsonl",
        "clients.parquet",
        "summary.json",
        "routing.json",
        "partition.npz",
        "model.safetensors",
        "checkpoints",
        "run.lock",
    }
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "finished" and summary["rounds"] == 3 and summary["seconds"] > 0
    assert {"python", "torch", "lightning", "fedmuon"} <= summary["versions"].keys()
    assert summary["up_bytes"] == sum(row["comm/up_bytes"] for row in rows(run)) > 0
    assert summary["parameters"] == 64 * 8 + 8 + 8 * 4 + 4
    assert [row["rule"] for row in json.loads((run / "routing.json").read_text())] == ["Muon", "AdamW", "Muon", "AdamW"]
    assert pq.read_table(run / "clients.parquet").num_rows == len(rows(run, "clients.jsonl")) == 9


def test_partition_and_validation_split_share_the_training_samples(run):
    with np.load(run / "partition.npz") as file:
        indices, held_out, offsets = file["indices"], file["validation"], file["offsets"]
    assert sorted([*indices, *held_out]) == list(range(240)) and len(held_out) == 24 and len(offsets) == 7


def test_evaluation_equals_the_last_row(run):
    last = rows(run)[-1]
    for size in (1000, 7):
        found = evaluate(run, size)
        flat = {f"{split}/{name}": value for split, figures in found.items() for name, value in figures.items()}
        assert flat == pytest.approx({key: last[key] for key in flat}, abs=1e-6)
        assert flat.keys() == {"val/loss", "val/accuracy", "test/loss", "test/accuracy"}


def test_evaluation_in_the_precision_of_the_run(tiny):
    path = fedmuon.run([*tiny, "trainer.precision=64-true", "data.augment.crop=2"]).path
    assert evaluate(path)["test"]["loss"] == pytest.approx(rows(path)[-1]["test/loss"], rel=1e-12)


def test_evaluation_under_the_autocast_of_the_run(tiny):
    path = fedmuon.run([*tiny, "trainer.precision=bf16-mixed"]).path
    assert evaluate(path)["test"]["loss"] == pytest.approx(rows(path)[-1]["test/loss"], rel=1e-6)


def test_a_wrong_folder_is_told_apart_from_a_run_without_a_model(run, tmp_path):
    shutil.copytree(run, tmp_path / "sweep" / "a")
    cases = {
        tmp_path / "nowhere": "nowhere: there is no such folder; name the folder that a run printed",
        run / "model.safetensors": f"model.safetensors: is a file, no run directory; name {run}",
        tmp_path / "sweep": f"sweep: is no run directory, but a folder that holds some; name one of them: {tmp_path}",
        tmp_path / "sweep" / "a" / "checkpoints": r"checkpoints: is no run directory \(it has no config.yaml\)",
    }
    for folder, said in cases.items():
        for opened in (fedmuon.load, evaluate):
            with pytest.raises(UsageError, match=f"^{folder.parent}/{said}"):
                opened(folder)
    copy = tmp_path / "sweep" / "a"
    (copy / "partition.npz").write_bytes(b"PK")
    with pytest.raises(UsageError, match=r"partition\.npz: is not a partition .* take it from a copy of the run"):
        evaluate(copy)
    (copy / "config.yaml").unlink()
    with pytest.raises(UsageError, match=rf"^{copy}: is no run directory \(it has no config\.yaml\)"):
        evaluate(copy)


def test_a_batch_of_nothing_is_refused(run, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fedmuon-evaluate", str(run), "--batch-size", "0"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err == "fedmuon-evaluate: --batch-size 0: must be at least 1\n"


def test_the_evaluation_command(run):
    code = "from fedmuon.evaluate import main; main()"
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr
    assert f"accuracy {rows(run)[-1]['test/accuracy']:.6f}" in next(
        line for line in done.stdout.splitlines() if line.startswith("test: ")
    )
    done = subprocess.run([sys.executable, "-c", code, "nowhere"], capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stderr.startswith("fedmuon-evaluate: ")


def test_load_gives_the_final_model_with_class_names(run):
    network = fedmuon.load(run)
    assert not network.training and network.classes == tuple(CLASSES)
    assert network(torch.zeros(2, 1, 8, 8)).shape == (2, 4)
    with safe_open(run / "model.safetensors", framework="pt") as file:
        assert json.loads(file.metadata()["classes"]) == CLASSES
        assert {name: file.get_tensor(name).shape for name in list(file.keys())} == {
            n: t.shape for n, t in network.state_dict().items()
        }


def test_load_needs_neither_the_data_nor_the_trainer(run, images, tmp_path):
    """The final model is usable where the data is not."""
    shutil.copytree(run, tmp_path / "copied")
    config = (tmp_path / "copied" / "config.yaml").read_text()
    (tmp_path / "copied" / "config.yaml").write_text(config.replace(str(images), "/no/such/folder"))
    network = fedmuon.load(tmp_path / "copied")
    assert network.classes == tuple(CLASSES)


def test_a_run_that_goes_on_has_no_final_model_until_it_ends(tiny):
    class Interrupted(Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            raise KeyboardInterrupt

    path = fedmuon.run([*tiny, "federation.rounds=1", "run_dir=run"]).path
    (job,) = fedmuon.cli.checked_jobs([*tiny, f"resume={path}"])
    with pytest.raises(KeyboardInterrupt):
        execute(job, callbacks=[Interrupted()])
    with pytest.raises(UsageError, match=r"has no model\.safetensors; it is written when a run ends"):
        fedmuon.load(path)
    assert not (path / "clients.parquet").exists()


def test_every_tensor_is_loaded_in_the_dtype_it_was_saved_in(federate):
    class Mixed(Classifier):
        def __init__(self):
            super().__init__(torch.nn.Linear(4, 3))
            self.register_buffer("seconds", torch.full((2,), 0.1, dtype=torch.float64))
            self.tied = torch.nn.Linear(4, 3)
            self.tied.weight = self.network.weight

    run = federate(Mixed(), blobs(6), [range(3), range(3, 6)])
    loaded = fedmuon.load(run.path, Mixed())
    assert {str(p.dtype) for p in loaded.parameters()} == {"torch.float32"}
    assert loaded.seconds.dtype == torch.float64 and loaded.seconds[0].item() == 0.1
    narrow = Mixed().double()
    narrow.seconds = narrow.seconds.float()
    loaded = fedmuon.load(run.path, narrow)
    assert loaded.seconds[0].item() == 0.1 and loaded.tied.weight is loaded.network.weight
    assert {str(p.dtype) for p in loaded.parameters()} == {"torch.float32"}


def test_load_refuses_in_one_line(run, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(run, damaged)
    (damaged / "model.safetensors").write_bytes(b"half of it")
    with pytest.raises(UsageError, match="damaged"):
        fedmuon.load(damaged)
    with pytest.raises(UsageError, match="does not fit"):
        fedmuon.load(run, torch.nn.Linear(2, 2))
    other = fedmuon.load(run)
    other.layers[-1] = torch.nn.Linear(8, 5)
    with pytest.raises(UsageError, match=r"does not fit the model .*size mismatch"):
        fedmuon.load(run, other)
    with pytest.raises(UsageError, match=r"^module=3: must be the module "):
        fedmuon.load(run, 3)
    with pytest.raises(UsageError, match=r"^run=None: must be the path of a run directory"):
        fedmuon.load(None)


def test_the_progress_lines_and_the_table(tiny):
    done = command(*tiny, "run_dir=run")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    rounds = [line for line in lines if "round " in line and "clients" in line]
    assert len(rounds) == 3 and "\x1b" not in done.stdout
    last = rows(Path("run"))[-1]
    for part in (
        "round 3/3",
        "3 of 3 clients",
        f"loss {last['train/loss']:.3f}",
        f"{last['test/accuracy']:.4f}",
        "up ",
        "down ",
        "left",
    ):
        assert part in rounds[-1]
    assert any(f"{last['test/accuracy']:.4f}" in line and "finished" in line for line in lines)
    assert lines[-1].strip() == "run"


def test_runs_without_a_name_get_directories_of_their_own(tiny):
    first, second = fedmuon.run(tiny).path, fedmuon.run(tiny).path
    assert first != second and first.parent == second.parent == Path("outputs")


def test_the_routing_is_printed_at_the_start(tiny):
    done = command(*tiny, "run_dir=run", "federation.rounds=1")
    before = done.stdout.split("round 1/1")[0]
    for part in ("layers.1.weight", "8 x 64", "Muon", "AdamW", "bias"):
        assert part in before
