"""The work of a round is a function of the round, and the next one's is made while clients train."""

from typing import Any

import numpy as np
import pytest

from fedmuon.config import Aggregation, Local, Stragglers
from fedmuon.data.partition import Partition
from fedmuon.server import Server
from fedmuon.work import Work
from tests.engines.test_equality import run


def test_it_is_the_same_whenever_it_is_made() -> None:
    partition = Partition.from_lists([range(5), range(5, 12), []])
    work = Work(partition, lambda round: np.arange(3), Local(steps=2, batch_size=3), Aggregation(), Stragglers(), 3, 7)
    (plan, first), (again, second) = work.of(4), work.of(4)
    assert plan == again and list(first) == [0, 1]  # nobody trains without samples
    for client, one in first.items():
        assert one.seed == second[client].seed and one.kept == {}
        assert [b.tolist() for b in one.batches] == [b.tolist() for b in second[client].batches]
        assert set(np.concatenate(one.batches)) <= set(partition[client]) and len(one.batches) == 2


@pytest.mark.parametrize(("engine", "workers"), [("sequential", 2), ("stacked", 1)])
def test_the_next_round_is_planned_while_clients_train(
    engine: str, workers: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    of, add = Work.of, Server.add
    monkeypatch.setattr(Work, "of", lambda work, round: seen.append(f"plan {round}") or of(work, round))
    monkeypatch.setattr(Server, "add", lambda *given: seen.append("add") or add(*given))
    run(tmp_path, "mlp", engine, "fedavg", **{"engine.workers": workers, "federation.rounds": 2})
    assert [one for one in seen if one != "add"] == ["plan 0", "plan 1"]  # none beyond the last
    assert seen[:3] == ["plan 0", "plan 1", "add"]
