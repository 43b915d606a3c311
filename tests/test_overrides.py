"""Overrides as texts: + and ~ before a key change nothing of which key it is, whoever reads it."""

import pytest

from fedmuon.cli import checked_jobs
from fedmuon.errors import UsageError
from fedmuon.overrides import keyed, leaves
from fedmuon.paper.tables import Sweep, merged, rows_of
from fedmuon.tune import read


@pytest.mark.parametrize("sign", ["", "+", "++", "~"])
def test_a_key_has_no_sign_and_a_value_may_have_any(sign):
    assert keyed(f"{sign}local.lr=+a=~b") == ("local.lr", "+a=~b")
    assert keyed(f"{sign}seed") == ("seed", "")


def test_a_group_that_is_given_as_one_sets_the_keys_in_it():
    assert leaves(["+a={b:1,c:{d:null}}", "e=[1]"]) == {
        "a": "{b:1,c:{d:null}}",
        "a.b": "1",
        "a.c.d": "null",
        "e": "[1]",
    }


def test_a_sign_before_nothing_names_no_key():
    for nothing in ("=3", "+=3", "~", ""):
        with pytest.raises(UsageError, match="names no key"):
            checked_jobs([nothing])


def test_the_keys_of_a_search_may_have_signs():
    assert read(["++n_trials=7", "+tune_dir=out", "algorithm=fedavg"]).n_trials == 7
    assert str(read(["+tune_dir=out", "algorithm=fedavg"]).folder) == "out"


def test_the_rows_of_a_table_have_keys_without_signs():
    overrides = merged(["algorithm=fedavg", "local.lr=0.1"], ["++local.lr=0.2,0.3"])
    assert overrides == ["algorithm=fedavg", "++local.lr=0.2,0.3"]
    sweep = Sweep("table", "clean", "group", "mlp", tuple(overrides))
    assert rows_of(sweep) == [("local.lr=0.2",), ("local.lr=0.3",)]
