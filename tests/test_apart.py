"""What of a configuration is of an earlier version, and what makes a run another run."""

import pytest

from fedmuon.apart import computed, gone

OURS = {"data._target_": "fedmuon.data.image_data"}


def test_keys_of_an_earlier_version():
    old = {"trainer.devices": 1, "trainer.precision": "32-true", "data.labels": None}
    assert gone(old) == ["trainer.devices"], "a data set of one's own may have data.labels"
    assert gone(old | OURS) == ["trainer.devices", "data.labels"] and gone(OURS) == []


BAR = {"callbacks.bar._target_": "lightning.pytorch.callbacks.RichProgressBar", "callbacks.bar.leave": True}
HUB = {"data.path": "uoft-cs/cifar100"}
ALIKE = [
    ({"run_dir": "a", "logger.wandb.name": "x", "checkpoint.every": 2, "evaluation.targets": [0.5]}, {}),
    ({"engine.workers": 1, "trainer.accelerator": "cpu", "trainer.max_time": None}, {"engine.workers": 2}),
    ({"trainer.devices": 1, "data.labels": "fine"} | OURS, OURS),
    ({"callbacks": {}}, BAR),
    (HUB | {"data.root": "/a"}, HUB | {"data.root": "/b"}),
]
STOPPING = {"callbacks.early_stopping._target_": "lightning.pytorch.callbacks.EarlyStopping"}
OTHERS = [
    ({"callbacks": {}}, STOPPING),
    ({"callbacks": {}}, {"callbacks.mine._target_": "mine.RichProgressBar"}),
    ({"data.root": "/a"}, {"data.root": "/b", "data.path": ""}),
    ({"trainer.precision": "32-true"}, {"trainer.precision": "64-true"}),
    ({"engine.threads": 1}, {"engine.threads": 2}),
    ({"federation.store": "memory"}, {"federation.store": "disk"}),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_where_it_is_computed_and_how_it_is_watched_is_the_same_run(one, other):
    assert computed({"seed": 1} | one) == computed({"seed": 1} | other)


@pytest.mark.parametrize(("one", "other"), OTHERS)
def test_what_may_change_a_result_is_another_run(one, other):
    assert computed(one) != computed(other)
