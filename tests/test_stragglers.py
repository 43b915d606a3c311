"""Simulated stragglers: pure, and each setting does what it says."""

import numpy as np
import pytest

from fedmuon.config import Aggregation, Local, Stragglers
from fedmuon.data import Partition
from fedmuon.plan import plan
from fedmuon.stragglers import answered, over_selected

STEPS = dict.fromkeys(range(200), 10)


def test_without_settings_everyone_answers() -> None:
    assert answered(Stragglers(), 0, 0, STEPS, wanted=200) == STEPS


def test_failures_are_drawn_anew_in_every_round_and_only_depend_on_the_keys() -> None:
    first, second = (answered(Stragglers(failure=0.3), 0, r, STEPS, 200) for r in (0, 1))
    assert first == answered(Stragglers(failure=0.3), 0, 0, STEPS, 200)
    assert set(first) != set(second)
    assert len(first) == pytest.approx(140, abs=30)
    assert answered(Stragglers(failure=1.0), 0, 0, STEPS, 200) == {}


def test_late_clients_are_left_out_or_send_what_they_have() -> None:
    dropped = answered(Stragglers(sigma=1.0, deadline=10), 0, 0, STEPS, 200)
    partial = answered(Stragglers(sigma=1.0, deadline=10, late="partial"), 0, 0, STEPS, 200)
    assert set(dropped.values()) == {10}
    assert len(dropped) == pytest.approx(100, abs=30)
    assert {client: k for client, k in partial.items() if k == 10} == dropped
    assert all(1 <= k <= 10 for k in partial.values())


def test_the_fastest_of_an_over_selection_count_and_a_slow_client_stays_slow() -> None:
    assert over_selected(10, 100, 1.25) == 13
    assert over_selected(10, 11, 2.0) == 11
    assert over_selected(100, 1000, 1.1) == 110  # in floating point 110.00000000000001
    rounds = [set(answered(Stragglers(sigma=0.5), 0, r, STEPS, wanted=20)) for r in range(2)]
    assert rounds[0] == rounds[1]
    assert len(rounds[0]) == 20


def test_of_clients_that_are_equally_fast_each_has_the_same_chance() -> None:
    steps = dict.fromkeys(range(20), 10)
    rounds = [answered(Stragglers(), 0, r, steps, wanted=10) for r in range(400)]
    assert rounds[3] == answered(Stragglers(), 0, 3, steps, wanted=10)
    assert all(len(done) == 10 and list(done) == sorted(done) for done in rounds)
    times = np.bincount([client for done in rounds for client in done], minlength=20)
    assert times.min() > 150 and times.max() < 250  # 200 is fair, the deviation is 10


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_a_plan_weighs_those_who_answer_and_leaves_out_empty_clients(weights: str) -> None:
    partition = Partition.from_lists([list(range(8)), [], list(range(8, 10)), list(range(10, 16))])
    local, none = Local(epochs=1.0, batch_size=4), Stragglers()
    made = plan(
        [0, 1, 2], partition, local=local, aggregation=Aggregation(weights=weights), stragglers=none, wanted=3, seed=0,
        round=0,
    )  # fmt: skip
    assert made.steps == {0: 2, 2: 1}
    assert made.weights == ({0: 0.8, 2: 0.2} if weights == "samples" else {0: 0.5, 2: 0.5})
    assert made.share == pytest.approx(10 / 16 if weights == "samples" else 2 / 3)
    assert np.isclose(sum(made.weights.values()), 1)
