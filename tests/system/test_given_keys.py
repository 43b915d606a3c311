"""Keys that say what Python gives already: `fedmuon.federate` refuses them, in place of leaving them unused."""

import re

import pytest
from torch import nn

from fedmuon.errors import UsageError
from tests.system.tasks import Classifier, blobs

_LISTS = [[0, 1], [2, 3, 4]]


@pytest.mark.parametrize(
    ("partition", "keys", "told"),
    [
        ("iid", {"data.augment.flip": True}, "data.augment.flip=true: .*allowed: data.seed, .*Samples.*augment="),
        ("iid", {"data": {"mean": [0.5]}}, "data.mean=[0.5]: describes data that is read from files"),
        ("iid", {"+data.root": "folder"}, "+data.root=.*folder.*: describes"),
        (_LISTS, {"partition.concentration": 3}, "partition.concentration=3: shapes a partition that is drawn"),
        (_LISTS, {"federation.clients": 4}, "federation.clients=4: differs from partition=, .* lists for 2 clients"),
    ],
)
def test_what_python_gives_is_no_key(federate, partition, keys, told):
    told = re.escape(told).replace(r"\.\*", ".*")
    with pytest.raises(UsageError, match=f"^{told}") as caught:
        federate(Classifier(nn.Linear(4, 3)), blobs(6), partition, **keys)
    assert "\n" not in str(caught.value)


def test_what_is_split_off_stays_a_key(federate):
    keys = {"data.seed": 1, "data.client_validation": 0.5, "federation.clients": 2, "federation.cohort": 2}
    assert federate(Classifier(nn.Linear(4, 3)), blobs(6), _LISTS, **keys).summary["status"] == "finished"
