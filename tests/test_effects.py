"""Keys that change nothing are refused where they are given, and taken where they do."""

from pathlib import Path

import numpy as np
import pytest

from fedmuon.cli import checked_jobs
from fedmuon.errors import UsageError
from tests.data.pictures import pixels, write_npz

# key=value, the overrides under which it changes nothing, and those under which it does
CASES = [
    ("server.beta2=0.5", "server=adagrad", "server=yogi"),
    ("server.bias_correction=true", "server=adagrad", "server=adagrad server.beta1=0.5"),
    ("compression.up.error_feedback=false", "", "compression=svd"),
    ("compression.up.states=[x]", "", "compression=bf16"),
    ("compression.down.error_feedback=true", "compression=svd", "compression.down.method=topk"),
    ("compression.up={share:0.1}", "compression=svd", "compression=topk"),
    ("algorithm.polar.method=svd", "algorithm.orthogonalize=false", ""),
    ("algorithm.polar={steps:3}", "algorithm.orthogonalize=false", ""),
    ("algorithm.mix_order=mix_then_polar", "algorithm.align=false", ""),
    ("algorithm.mix_order=mix_then_polar", "algorithm.alpha=0", ""),
    ("algorithm.align=true", "algorithm=fedavg", "algorithm=fedcm"),
    ("algorithm.qkv=[w]", "", "algorithm.split_qkv=true"),
    ("sampler.repeat=true", "sampler=availability", "sampler=availability sampler.path=trace.json"),
    ("sampler.probability=0.1", "sampler=availability sampler.path=trace.json", "sampler=availability"),
    ("partition.seed=1", "partition=file partition.path=trace.json", "partition=iid"),
    ("partition.seed=1", "partition=natural", "partition=natural partition.merge=true"),
    ("data.path=a/b", "data.root=a.npz", "data=hub"),
    ("data.revision=main", "", "data=mnist"),
    ("data.config=plain", "", "data=mnist"),
    ("data.label=label", "data.root=a.npz", ""),
    ("data.train_split=train", "data.root=a.npz", ""),
    ("data.test_crop=4", "data.test_split=null", ""),
    ("evaluation.targets=[0.5]", "data.test_split=null", ""),
]


@pytest.mark.parametrize(("key", "without", "with_it"), CASES)
def test_a_key_that_changes_nothing(key: str, without: str, with_it: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.json").write_text("[[0]]")
    write_npz(tmp_path / "a.npz", (pixels(4, 6, 6), np.arange(4) % 2), (pixels(2, 6, 6), np.arange(2)))
    assert len(checked_jobs([*with_it.split(), key])) == 1
    name = key.partition("=")[0]
    with pytest.raises(UsageError, match=rf"^{name}(\.\w+)?: has no effect without .*; give that as well, or leave"):
        checked_jobs([*without.split(), key])


NOTHING = [
    "compression.up.states=null",
    "sampler=availability sampler.repeat=false",
    "algorithm=fedavg algorithm.align=false",
]


@pytest.mark.parametrize("nothing", NOTHING)
def test_a_value_that_asks_for_nothing_is_right(nothing: str):
    assert len(checked_jobs(nothing.split())) == 1
