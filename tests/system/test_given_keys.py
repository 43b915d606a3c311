"""Wrong arguments in Python: refused in one line, in place of left unused or ending in a raw error."""

import re

import numpy as np
import pytest
import torch
from torch import nn

import fedmuon
from fedmuon.errors import UsageError
from fedmuon.experiment import Run
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
        (_LISTS, {"++federation.clients": 3}, "federation.clients=3: differs from partition="),
        (_LISTS, {"~federation.clients": None}, "federation.clients=null: differs from partition="),
        (_LISTS, {"++data.validation": 0.5}, "data.validation=0.5: holds nothing out where partition="),
        (_LISTS, {"data.validation": np.array([0.5])}, "data.validation=.*: must be a number"),
        ("iid", {"data.client_validation": None}, "data.client_validation=null: must be a number"),
        ("iid", {"data.client_validation": float("nan")}, "data.client_validation="),
        ("iid", {"data.client_validation": 2}, "data.client_validation=2"),
        ("iid", {"data.seed": "x"}, "data.seed=x: must be a whole number"),
        ("iid", {"data.seed": -1}, "data.seed=-1: "),
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


@pytest.mark.parametrize("wrong", ["model=mlp", None, [5], {"model": "mlp"}])
def test_overrides_of_another_kind(wrong):
    with pytest.raises(
        UsageError, match=rf"^overrides={re.escape(repr(wrong))}: must be a list of texts, as \['model="
    ):
        fedmuon.run(wrong)


def test_what_is_no_path_and_no_list_is_said_briefly(federate, tmp_path):
    with pytest.raises(UsageError, match=r"^resume=5: must be the path of a run directory; "):
        federate(Classifier(nn.Linear(4, 3)), blobs(6), "iid", resume=5)
    with pytest.raises(UsageError, match=r"^run=Run: must be the path of a run directory; give run\.path$"):
        fedmuon.load(Run({"status": "finished"}, tmp_path))
    with pytest.raises(UsageError, match=r"^partition: client 0 has \[True, (True, )+\.\.\.\]; give ") as caught:
        federate(Classifier(nn.Linear(4, 3)), blobs(6), [np.ones(400, bool)])
    assert len(str(caught.value)) < 150
    for row in ([0, [1, 2]], torch.ones(3, requires_grad=True)):
        with pytest.raises(UsageError, match=r"^partition: client 0 has .*; give every client a list"):
            federate(Classifier(nn.Linear(4, 3)), blobs(6), [row])
