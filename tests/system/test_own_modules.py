"""A user's own LightningModule through `fedmuon.federate`, and what runs leave in the process: nothing."""

import gc
import logging
import random
import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from lightning import LightningDataModule, LightningModule
from lightning.pytorch.callbacks import Callback
from omegaconf import OmegaConf
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import fedmuon
from fedmuon.compression import TruncatedSVD
from fedmuon.data.given import as_samples, labels_of
from fedmuon.data.samples import Samples
from fedmuon.errors import UsageError
from fedmuon.experiment import RunFailed
from fedmuon.report.compare import groups
from fedmuon.report.runs import read_run
from tests.system.tasks import Classifier, Quadratic, blobs, lines


def test_numbers_and_torchmetrics_of_a_users_module(federate):
    torch.manual_seed(0)
    task = Classifier(nn.Linear(4, 3))
    val = blobs(23, seed=1)
    run = federate(task, blobs(12), [range(8), range(8, 12)], val=val, **{"evaluation.batch_size": 10, "rounds": 2})
    row = lines(run)[-1]
    logits = task.network(val[0]).detach()
    assert row["val/loss"] == pytest.approx(cross_entropy(logits, val[1]).item(), abs=1e-6)
    assert row["val/acc"] == pytest.approx((logits.argmax(1) == val[1]).double().mean().item())
    assert row["train/train_batch"] == 4
    assert run.summary["best"]["val/loss"] == min(one["val/loss"] for one in lines(run))


@pytest.mark.parametrize("metric", ["acc", "val_acc", "val/acc"])
def test_the_best_round_by_a_metric_that_is_better_larger(federate, metric):
    """By the name that it is recorded under, or the one that the module logs."""
    torch.manual_seed(0)
    keys = {"evaluation.metric": metric, "rounds": 3, "local.lr": 1.0}
    run = federate(Classifier(nn.Linear(4, 3)), blobs(12), [range(8), range(8, 12)], val=blobs(23, seed=1), **keys)
    values = [one["val/acc"] for one in lines(run)]
    assert run.summary["best"]["val/acc"] == max(values) > min(values)
    assert OmegaConf.load(run.path / "config.yaml").evaluation.metric == "acc"
    with pytest.raises(UsageError, match=r"^evaluation\.metric=kept: .*set evaluation\.mode=max or min"):
        federate(Classifier(nn.Linear(4, 3)), blobs(2), [[0], [1]], **{"evaluation.metric": "kept"})


def test_the_users_own_optimizer_is_not_used_and_that_is_said(federate, capsys):
    class Own(Quadratic):
        def configure_optimizers(self):
            raise AssertionError("called")

    federate(Own(), torch.ones(2), [[0], [1]])
    assert "Own.configure_optimizers is not used" in capsys.readouterr().out


@pytest.mark.parametrize(
    "partition, val, message", [("iid", blobs(6), "beside val="), ([range(6), range(6, 12)], None, "where partition= ")]
)
def test_a_share_that_would_hold_nothing_out_is_refused(federate, partition, val, message):
    with pytest.raises(UsageError, match=rf"^data\.validation=0\.25: holds nothing out {message}"):
        federate(Classifier(nn.Linear(4, 3)), blobs(12), partition, val=val, **{"data.validation": 0.25})


def test_the_module_is_the_users_again_afterwards(federate):
    task = Classifier(nn.Linear(4, 3))
    federate(task, blobs(6), [range(3), range(3, 6)])
    assert "log" not in vars(task) and "log_dict" not in vars(task)
    assert all(p.requires_grad and not p.is_inference() for p in task.parameters())
    cross_entropy(task.network(blobs(6)[0]), blobs(6)[1]).backward()


@pytest.mark.parametrize(
    ("precision", "computed", "kept"),
    [
        ("bf16-mixed", torch.bfloat16, torch.float32),
        ("64-true", torch.float64, torch.float64),
        ("32-true", torch.float32, torch.float32),
    ],
)
def test_precisions(federate, precision, computed, kept):
    torch.manual_seed(0)
    task = Classifier(nn.Linear(4, 3))
    before = task.network.weight.detach().clone()
    run = federate(
        task, blobs(12), [range(6), range(6, 12)], algorithm="fedmuon", val=blobs(6), **{"trainer.precision": precision}
    )
    assert set(task.seen) == {computed}
    assert task.network.weight.dtype == kept and not torch.equal(task.network.weight, before.to(kept))
    assert torch.get_default_dtype() == torch.float32 and run.summary["status"] == "finished"


def test_what_a_transform_makes_has_the_runs_precision(federate):
    class Seen(Classifier):
        def validation_step(self, batch, batch_idx):
            assert batch[0].dtype == torch.float64
            super().validation_step(batch, batch_idx)

    images, labels = blobs(12)
    samples = Samples((images.to(torch.int32), labels), transform=lambda batch: (batch[0].float() / 255, batch[1]))
    federate(Seen(nn.Linear(4, 3)), samples, [range(6), range(6, 12)], val=samples, **{"trainer.precision": "64-true"})


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_bf16_of_the_engine_is_bf16_of_the_trainer(federate, engine):
    found = []
    for key, value in (("engine.precision", "bf16"), ("trainer.precision", "bf16-mixed")):
        torch.manual_seed(0)
        task = Classifier(nn.Linear(4, 3))
        federate(task, blobs(8), [range(4), range(4, 8)], **{"local.steps": 9, "engine": engine, key: value})
        found.append(task.network.weight.detach().clone())
    torch.testing.assert_close(*found, rtol=0, atol=1e-6)


def test_the_server_computes_in_full_precision_under_bf16_mixed(federate, monkeypatch):
    decoded, ranks = TruncatedSVD.decoded, []

    def watched(self, t, draws):
        found = decoded(self, t, draws)
        with torch.autocast("cpu", enabled=False):
            assert torch.equal(found, decoded(self, t, draws))
        ranks.append(self.rank(*t.shape))
        return found

    monkeypatch.setattr(TruncatedSVD, "decoded", watched)
    keys = {"trainer.precision": "bf16-mixed", "compression.up.method": "svd"}
    federate(Classifier(nn.Linear(4, 3)), blobs(12), [range(6), range(6, 12)], **keys)
    assert ranks == [1, 1]


def test_dropout_is_drawn_per_client_and_off_in_evaluation(federate):
    class Dropped(Quadratic):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)
            self.outputs = []

        def training_step(self, batch, batch_idx):
            self.outputs.append(tuple(self.drop(torch.ones(64)).tolist()))
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            self.log("kept", self.drop(torch.ones(64)).mean())

    tasks = [Dropped(), Dropped()]
    for task in tasks:
        keys = {"evaluation.metric": "kept", "evaluation.mode": "max"}
        run = federate(task, torch.ones(2), [[0], [1]], val=torch.ones(2), rounds=2, **keys)
        torch.rand(3)  # the global generator is nobody's source
    assert tasks[0].outputs == tasks[1].outputs and len(set(tasks[0].outputs)) == 8
    assert [row["val/kept"] for row in lines(run)] == [1, 1]


class Hooked(Classifier):
    """Builds its network late and keeps books of its own, as modules of other people do."""

    def __init__(self):
        super().__init__(None)
        self.calls, self.right, self.seen_samples = [], 0, 0

    def setup(self, stage):
        self.calls.append(f"setup {stage}")

    def configure_model(self):
        self.calls.append("configure_model")
        if self.network is None:
            self.network = nn.Linear(4, 3)

    def on_fit_start(self):
        self.calls.append("on_fit_start")

    def on_fit_end(self):
        self.calls.append("on_fit_end")

    def on_train_start(self):
        self.calls.append(f"on_train_start in round {self.trainer.current_epoch}")
        self.log("train_begun", 1.0)

    def on_train_end(self):
        self.calls.append("on_train_end")

    def on_validation_epoch_start(self):
        self.right = self.seen_samples = 0

    def validation_step(self, batch, batch_idx):
        self.right += int((self.network(batch[0]).argmax(1) == batch[1]).sum())
        self.seen_samples += len(batch[1])
        self.log("loss", cross_entropy(self.network(batch[0]), batch[1]))

    def on_validation_epoch_end(self):
        self.log_dict({"val_right": self.right / self.seen_samples, "val_samples": self.seen_samples})

    def on_train_epoch_end(self):
        raise AssertionError("called")

    def on_test_epoch_end(self):
        raise AssertionError("called")


def test_hooks_of_the_module_are_called_or_named(federate, capsys):
    torch.manual_seed(0)
    task = Hooked()
    val, test = blobs(23, seed=1), blobs(9, seed=2)
    keys = {"evaluation.batch_size": 10, "rounds": 2}
    run = federate(task, blobs(12), [range(8), range(8, 12)], val=val, test=test, **keys)
    begun = ["setup fit", "configure_model", "on_fit_start", "on_train_start in round 0"]
    assert task.calls == [*begun, "on_train_end", "on_fit_end"]
    first, last = lines(run)
    assert (last["val/samples"], last["test/samples"]) == (23, 9)
    for part, (images, labels) in (("val", val), ("test", test)):
        assert last[f"{part}/right"] == pytest.approx((task.network(images).argmax(1) == labels).double().mean().item())
    assert first["train/begun"] == 1 and "train/begun" not in last
    (told,) = [line for line in capsys.readouterr().out.splitlines() if "hooks" in line]
    assert told.startswith("fedmuon: Hooked defines hooks that are not called: on_train_epoch_end, on_test_epoch_end; ")
    federate(Classifier(nn.Linear(4, 3)), blobs(6), [range(3), range(3, 6)])
    assert "hooks" not in capsys.readouterr().out


def test_every_client_is_evaluated_between_hooks_of_its_own(federate):
    keys = {"data.client_validation": 0.5, "evaluation.clients_every": 1, "evaluation.metric": "loss"}
    run = federate(Hooked(), blobs(12), [range(8), range(8, 12)], val=blobs(5), **keys)
    assert [row["after/samples"] for row in lines(run, "clients.jsonl")] == [4, 2]
    assert lines(run)[0]["val/samples"] == 5


@pytest.mark.parametrize(
    ("hook", "error", "message"),
    [
        ("setup", UsageError, r"^module=Wrong: setup: ZeroDivisionError: division by zero$"),
        ("configure_model", UsageError, r"^module=Wrong: configure_model: ZeroDivisionError: "),
        ("on_train_start", RunFailed, r": Wrong\.on_train_start: ZeroDivisionError: "),
        ("on_validation_epoch_end", RunFailed, r": round 1: validation, val: ZeroDivisionError: "),
        ("validation_step", RunFailed, r": round 1: validation, val: ZeroDivisionError: division by zero$"),
    ],
)
def test_faults_of_hooks_and_validation_say_where(federate, hook, error, message):
    wrong = type("Wrong", (Classifier,), {hook: lambda self, *args, **kwargs: 1 / 0})
    with pytest.raises(error, match=message):
        federate(wrong(nn.Linear(4, 3)), blobs(6), [range(3), range(3, 6)], val=blobs(5))


def test_a_fault_on_a_clients_own_samples_names_the_client(federate):
    wrong = type("Wrong", (Classifier,), {"validation_step": lambda self, batch, batch_idx: 1 / 0})
    keys = {"data.client_validation": 0.5, "evaluation.clients_every": 1}
    with pytest.raises(RunFailed, match=r": round 1: validation, client 0: ZeroDivisionError: division by zero$"):
        federate(wrong(nn.Linear(4, 3)), blobs(6), [range(3), range(3, 6)], **keys)


def test_callbacks_are_instances_or_options(federate):
    class Counting(Callback):
        status = "of its own"
        rounds = 0

        def on_train_epoch_end(self, trainer, pl_module):
            self.rounds += 1

    mine, data = Counting(), (blobs(6), [range(3), range(3, 6)])
    run = federate(Classifier(nn.Linear(4, 3)), *data, rounds=2, callbacks=[mine])
    assert mine.rounds == 2 and run.summary["status"] == "finished"
    both = {"callbacks": ["early_stopping", mine], "callbacks.early_stopping.monitor": "train/loss"}
    federate(Classifier(nn.Linear(4, 3)), *data, **both)
    assert mine.rounds == 3
    with pytest.raises(UsageError, match=r"^callbacks=<class .*Counting'>: must be an instance of "):
        federate(Classifier(nn.Linear(4, 3)), *data, callbacks=[Counting])


class Jittered(Dataset):
    """A map-style data set with a transform of its own."""

    def __init__(self, count):
        self.images, self.targets = blobs(count)

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return self.images[index] + 1, self.targets[index]


def test_a_data_set_is_read_once_and_that_is_said(federate, capsys):
    lists = [range(3), range(3, 6)]
    federate(Classifier(nn.Linear(4, 3)), DataLoader(Jittered(6)), lists, val=blobs(5))
    (told,) = [line for line in capsys.readouterr().out.splitlines() if "read once" in line]
    assert told.startswith("fedmuon: train=Jittered: 6 samples are read once, their transforms with them; ")
    assert "augment=" in told
    federate(Classifier(nn.Linear(4, 3)), TensorDataset(*blobs(6)), lists, val=DataLoader(TensorDataset(*blobs(5))))
    assert "read once" not in capsys.readouterr().out


def test_what_a_data_set_draws_follows_the_seed(federate):
    class Noisy(Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            return torch.full((4,), float(np.random.rand()) + random.random()) + torch.rand(4), index % 3

    def weights(seed):
        torch.manual_seed(0)
        task = Classifier(nn.Linear(4, 3))
        federate(task, Noisy(), [range(3), range(3, 6)], seed=seed)
        return task.network.weight.detach().clone()

    before = random.getstate(), torch.get_rng_state()
    first = weights(1)
    assert random.getstate() == before[0]
    assert torch.equal(first, weights(1)) and not torch.equal(first, weights(2))


class Fields(Dataset):
    """Three samples of a text and a sequence of five steps."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return {"text": "word", "x": torch.zeros(5, 2)}


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (Fields(), r"Fields: must be .* here is str$"),
        (DataLoader(Fields(), collate_fn=lambda s: torch.stack([one["x"] for one in s], 1)), r"Fields: its 3 .* of 5;"),
        (Samples((torch.zeros(3), torch.zeros(2))), r"Samples: its tensors have different lengths, \[3, 2\]"),
        (Samples(([0, 1], torch.zeros(2))), r"Samples: must be .* here is int$"),
        (DataLoader(TensorDataset(torch.zeros(0, 2)), shuffle=False), r"TensorDataset: is empty$"),
        ([], r"list: is empty$"),
    ],
)
def test_data_that_is_no_tensors_of_one_length_is_refused(data, told):
    with pytest.raises(UsageError, match=f"^val={told}"):
        as_samples(data, "val")


def test_what_surrounds_tensors_is_used():
    class Shifted(TensorDataset):
        def __getitem__(self, index):
            return self.tensors[0][index] + 1

    zeros = TensorDataset(torch.zeros(3, 2))
    assert torch.equal(as_samples(Shifted(torch.zeros(3, 2)), "train").columns, torch.ones(3, 2))
    collated = DataLoader(zeros, collate_fn=lambda samples: torch.stack([one for (one,) in samples]) - 1)
    assert torch.equal(as_samples(collated, "train").columns, -torch.ones(3, 2))


COUNTED = TensorDataset(torch.arange(6.0), torch.arange(6) % 2)


@pytest.mark.parametrize(
    ("how", "read"),
    [
        ({"sampler": SubsetRandomSampler([4, 1, 2])}, [4, 1, 2]),
        ({"batch_sampler": BatchSampler(SubsetRandomSampler([3]), 2, False)}, [3]),
        ({"batch_sampler": BatchSampler(SequentialSampler(COUNTED), 2, False)}, [*range(6)]),
        ({"sampler": DistributedSampler(COUNTED, 2, 0)}, [*range(6)]),
        ({"shuffle": True, "batch_size": 4, "drop_last": True}, [*range(6)]),
    ],
)
def test_a_loader_gives_the_samples_that_its_sampler_draws_from(how, read):
    loader = DataLoader(COUNTED, **how)
    samples = as_samples(loader, "val")
    assert samples.columns[0].tolist() == read
    assert labels_of(loader, samples).tolist() == [index % 2 for index in read]


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ({"sampler": WeightedRandomSampler([1.0] * 6, 6)}, "WeightedRandomSampler"),
        ({"sampler": RandomSampler(COUNTED, replacement=True)}, "RandomSampler"),
        ({"sampler": RandomSampler(COUNTED, num_samples=3)}, "RandomSampler"),
        ({"sampler": SequentialSampler(range(3))}, "SequentialSampler"),
        ({"sampler": [0, 5]}, "list"),
        ({"batch_sampler": [[0, 1], [2]]}, "list"),
        ({"batch_size": None}, "batch_size=None"),
    ],
)
def test_a_loader_that_draws_in_a_way_of_its_own_is_refused(how, name):
    with pytest.raises(UsageError, match=rf"^train=DataLoader: {name} .*Subset\(dataset, indices\)"):
        as_samples(DataLoader(COUNTED, **how), "train")


class Declared(TensorDataset):
    def __init__(self, *tensors, **declared):
        super().__init__(*tensors)
        vars(self).update(declared)


X, TWO = torch.zeros(3, 2), torch.tensor([1, 0, 1])


@pytest.mark.parametrize(
    ("data", "labels"),
    [
        (Declared(X, targets=[2, 0, 2]), [2, 0, 2]),
        (Declared(X, targets=torch.tensor([2, 0, 2], dtype=torch.int8)), [2, 0, 2]),
        (Declared(X, labels=["dog", "cat", "dog"]), [1, 0, 1]),
        (Declared(X, labels=np.array(["dog", "cat", "dog"], object)), [1, 0, 1]),
        (Declared(X, targets=[0.1, 0.9, 1.7]), None),
        (Declared(X, TWO, targets=[[0], [1, 2], []], labels=lambda: 0), [1, 0, 1]),
        ({"x": X, "label": TWO, "idx": torch.arange(3)}, [1, 0, 1]),
        ({"y": TWO, "labels": 1 - TWO, "idx": torch.arange(3)}, [0, 1, 0]),
        ({"x": X, "y": torch.rand(3), "idx": torch.arange(3)}, None),
        ({"x": X, "fine": TWO}, [1, 0, 1]),
    ],
)
def test_labels_are_what_is_called_so_and_can_be_classes(data, labels):
    found = labels_of(data, as_samples(data, "train"))
    assert labels == (None if found is None else found.tolist())
    assert found is None or found.dtype == np.int64


def test_a_share_that_leaves_nothing_to_hold_out_is_refused(federate):
    told = r"^data\.validation=0\.25: holds out none of 6 samples, of which each of 6 classes keeps one.*; raise it, or"
    x, _ = blobs(6)
    with pytest.raises(UsageError, match=told):
        federate(Classifier(nn.Linear(4, 3)), (x, torch.arange(6)), "iid", **{"data.validation": 0.25})


def test_a_layer_without_a_shape_yet_is_named(federate):
    task = Classifier(nn.LazyLinear(3))
    with pytest.raises(
        UsageError, match=r"^model: network\.weight has no shape before a first batch; call the network"
    ):
        federate(task, blobs(6), [range(3), range(3, 6)])
    task.network(torch.zeros(1, 4))
    assert federate(task, blobs(6), [range(3), range(3, 6)]).summary["status"] == "finished"


# -- the process


def test_runs_of_other_modules_and_other_data_are_other_groups_of_a_report(federate):
    class Sized(Classifier):
        def __init__(self, width: int, loss: str, seed: int) -> None:
            super().__init__(nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3)))
            self.save_hyperparameters()
            self.network[1].register_forward_hook(lambda *of: None)

    samples = {(4, "a", 12): (0, 1), (8, "a", 12): (0,), (8, "${b}", 12): (0,), (4, "a", 9): (0,)}
    lists = [range(4), range(4, 9)]
    runs = [
        federate(Sized(width, loss, seed), blobs(count, seed), lists, seed=seed).path
        for (width, loss, count), seeds in samples.items()
        for seed in seeds
    ]
    networks = [nn.Sequential(nn.Linear(4, 3)), nn.Sequential(nn.Linear(4, 3), nn.Tanh())]
    runs += [federate(Classifier(network), blobs(12), lists).path for network in networks]
    found = groups([read_run(run) for run in runs])
    assert sorted(len(group.runs) for group in found) == [1, 1, 1, 1, 1, 2]
    assert any("width=8" in group.label and "loss=" in group.label for group in found)


def test_memory_reaches_a_plateau(federate):
    class Watched(Classifier):
        def training_step(self, batch, batch_idx):
            self.seen = []
            self.steps = getattr(self, "steps", 0) + 1
            if self.steps in (4 * 20, 4 * 60):
                gc.collect()
                self.held = [*getattr(self, "held", []), len(gc.get_objects())]  # tensors are among them
            return super().training_step(batch, batch_idx)

    task = Watched(nn.Linear(4, 3))
    federate(task, blobs(12), [range(6), range(6, 12)], algorithm="fedmuon", rounds=60, val=blobs(6))
    early, late = task.held
    assert late - early < 40, f"{(late - early) / 40:.1f} objects a round"


def test_runs_leave_nothing_behind_in_the_process(federate):
    def state() -> tuple[Any, ...]:
        names = ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning")
        levels = [(logging.getLogger(n).level, len(logging.getLogger(n).handlers)) for n in names]
        return (
            {t.name for t in threading.enumerate()},
            levels,
            len(logging.getLogger().handlers),
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.random.get_rng_state().tolist(),
            torch.is_autocast_enabled("cpu"),
            list(warnings.filters),
            torch.are_deterministic_algorithms_enabled(),
        )

    federate(Quadratic(), torch.ones(2), [[0], [1]])
    before = state()
    for precision in ("64-true", "bf16-mixed", "32-true"):
        federate(
            Classifier(nn.Linear(4, 3)),
            blobs(6),
            [range(3), range(3, 6)],
            val=blobs(3),
            **{"trainer.precision": precision},
        )
    assert state()[:5] == before[:5] and state()[6:] == before[6:]


def test_float32_is_that_of_matrix_products_for_convolutions_too(federate):
    """cuDNN's default is TF32; a run leaves it as it was, also where torch's newer settings were used."""

    class Asks(Quadratic):
        def on_fit_start(self):
            seen.append(torch.backends.cudnn.allow_tf32)

    seen: list[bool] = []
    before = torch.get_float32_matmul_precision()
    try:
        for asked in ("highest", "high"):
            torch.set_float32_matmul_precision(asked)
            federate(Asks(), torch.ones(2), [[0], [1]])
        assert seen == [False, True] and torch.backends.cudnn.allow_tf32
        torch.set_float32_matmul_precision("highest")
        if hasattr(torch.backends, "fp32_precision"):
            torch.backends.fp32_precision = "tf32"
            federate(Quadratic(), torch.ones(2), [[0], [1]])
            assert torch.backends.fp32_precision == "tf32"
    finally:
        if hasattr(torch.backends, "fp32_precision"):
            torch.backends.fp32_precision = "none"
        torch.set_float32_matmul_precision(before)


def test_bytes_follow_from_what_an_algorithm_sends(federate):
    task = Classifier(nn.Linear(4, 3))
    tensors = 4 * (12 + 3)
    for algorithm, up, down in (("fedavg", tensors, tensors), ("fedmuon", tensors + 48, 2 * tensors + 48)):
        run = federate(task, blobs(6), [range(3), range(3, 6), []], algorithm=algorithm)
        assert (lines(run)[0]["comm/up_bytes"], lines(run)[0]["comm/down_bytes"]) == (2 * up, 3 * down)
        assert (run.summary["up_bytes"], run.summary["down_bytes"]) == (2 * up, 3 * down)


class Alone(Classifier):
    def validation_step(self, batch):
        super().validation_step(batch, 0)


class Several(Classifier):
    def validation_step(self, batch, batch_idx, dataloader_idx):
        assert dataloader_idx == 0
        super().validation_step(batch, batch_idx)


@pytest.mark.parametrize("kind", [Alone, Several])
def test_validation_steps_take_what_lightning_lets_them_take(federate, kind):
    keys = {"data.client_validation": 0.5, "evaluation.clients_every": 1, "evaluation.metric": "acc"}
    found = []
    for one in (Classifier, kind):
        torch.manual_seed(0)
        run = federate(one(nn.Linear(4, 3)), blobs(12), [range(8), range(8, 12)], val=blobs(5), **keys)
        found.append({key: value for key, value in lines(run)[0].items() if "acc" in key})
    assert found[0] == found[1] and {"val/acc", "clients/after/acc_mean"} <= found[0].keys()


def test_classes_of_pytorch_lightning_are_told(federate):
    for key, kind in (("module", LightningModule), ("train", LightningDataModule), ("callbacks", Callback)):
        base = type("Base", (kind,), {"__module__": "pytorch_lightning.core"})  # stands for the other package's class
        given = {"module": Quadratic(), "train": torch.ones(2), key: type("Mine", (base,), {})()}
        with pytest.raises(UsageError, match=rf"^{key}=Mine: is of pytorch_lightning; write import lightning\.pytorch"):
            federate(given.pop("module"), given.pop("train"), [[0], [1]], **given)


def test_what_a_module_keeps_beside_tensors_goes_with_its_checkpoints(federate):
    class Noted(Classifier):
        def get_extra_state(self):
            return {"note": "kept"}

        def set_extra_state(self, state):
            self.note = state["note"]

    data = (blobs(6), [range(3), range(3, 6)])
    run = federate(Noted(nn.Linear(4, 3)), *data)
    task = Noted(nn.Linear(4, 3))
    federate(task, *data, rounds=2, resume=str(run.path), run_dir=None)
    assert task.note == "kept"
    loaded = fedmuon.load(run.path, Noted(nn.Linear(4, 3)))
    assert torch.equal(loaded.network.weight, task.network.weight)


def test_the_module_holds_the_global_model_of_a_run_that_was_complete(federate):
    class Late(Classifier):
        def __init__(self):
            super().__init__(None)
            self.classes, self.frozen = ["a", "b", "c"], nn.Dropout().eval()

        def configure_model(self):
            if self.network is None:
                self.network = nn.Linear(4, 3)

    data, trained, again = (blobs(6), [range(3), range(3, 6)]), Late(), Late()
    run = federate(trained, *data)
    assert federate(again, *data, rounds=None, resume=str(run.path), run_dir=None).path == run.path
    assert torch.equal(trained.network.weight, again.network.weight)
    assert again.classes == ["a", "b", "c"] and not again.frozen.training


def test_regression_needs_no_labels(federate):
    class Regression(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def training_step(self, batch, batch_idx):
            return mse_loss(self.layer(batch["x"]), batch["y"])

    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    run = federate(
        Regression(),
        {"x": x, "y": x.sum(1, keepdim=True)},
        "iid",
        rounds=3,
        **{"federation.clients": 4, "federation.cohort": 2},
    )
    losses = [row["train/loss"] for row in lines(run)]
    assert losses[-1] < losses[0]
