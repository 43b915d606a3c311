"""What engine=auto takes, what it says, and what a resumed run keeps."""

from typing import Any

import pytest
import torch

from fedmuon.cli import checked_jobs
from fedmuon.engines.running import Running
from fedmuon.errors import UsageError
from tests.engines.rounds import Rounds, algorithm_of


@pytest.mark.parametrize("model,expected", [("mlp", "stacked"), ("cnn", "sequential"), ("vit_tiny", "sequential")])
def test_on_a_cpu_the_model_decides(model: str, expected: str) -> None:
    engine = Rounds(model, algorithm_of("fedavg"), torch.float32, name="auto").engine
    assert engine.name == expected
    assert engine.notes == [engine.notes[0]] and engine.notes[0].startswith(f"engine=auto: {expected} (cpu, ")


def test_measure_times_both_and_takes_the_faster(monkeypatch: Any) -> None:
    seconds = {"sequential": 2.0, "stacked": 1.0}

    def timed(self: Running, name: str, work: Any, broadcast: Any) -> float:
        self._use(name)
        return seconds[name]

    monkeypatch.setattr(Running, "_seconds", timed)
    one = Rounds("cnn", algorithm_of("fedavg"), torch.float32, name="auto", measure=True, workers=1)
    one.run(1)
    assert one.engine.name == "stacked" and "sequential 2000.0 ms, stacked 1000.0 ms" in one.engine.notes[-1]
    other = Rounds("cnn", algorithm_of("fedavg"), torch.float32, name="auto", measure=True, workers=1)
    other.engine.restore(one.engine.checkpoint())
    seconds["sequential"] = 0.0
    other.run(1)
    assert other.engine.name == "stacked"


def test_a_trial_leaves_nothing_behind() -> None:
    plain = Rounds("cnn_pfl", algorithm_of("scaffold"), torch.float32, name="stacked", workers=1).run(2)
    one = Rounds("cnn_pfl", algorithm_of("scaffold"), torch.float32, name="auto", measure=True, workers=1)
    found = one.run(2)
    if one.engine.name == "stacked":
        assert all(torch.equal(plain[name], found[name]) for name in plain)
    else:
        expected = Rounds("cnn_pfl", algorithm_of("scaffold"), torch.float32, name="sequential", workers=1).run(2)
        assert all(torch.equal(expected[name], found[name]) for name in found)
    assert "measured" in one.engine.notes[-1]


def test_bf16_in_a_run_of_64_bits_is_refused() -> None:
    with pytest.raises(UsageError, match=r"engine.precision=bf16: .*trainer.precision=64-true"):
        checked_jobs(["engine.precision=bf16", "trainer.precision=64-true", "logger=none"])
