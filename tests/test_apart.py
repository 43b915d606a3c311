"""What of a configuration is of an earlier version, and what makes a run another run."""

from fedmuon.apart import gone

OURS = {"data._target_": "fedmuon.data.image_data"}


def test_keys_of_an_earlier_version():
    old = {"trainer.devices": 1, "trainer.precision": "32-true", "data.labels": None}
    assert gone(old) == ["trainer.devices"], "a data set of one's own may have data.labels"
    assert gone(old | OURS) == ["trainer.devices", "data.labels"] and gone(OURS) == []
