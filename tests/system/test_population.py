"""A population far larger than the data: start-up and memory follow the data."""

from pathlib import Path

import fedmuon
from fedmuon import rundir
from fedmuon.data import Partition


def test_a_million_clients_most_of_them_empty(tiny, tmp_path: Path) -> None:
    keys = [one for one in tiny if not one.startswith(("partition.", "federation."))]
    many = ["partition=quantity", "partition.min_size=0", "federation.clients=1000000", "federation.cohort=100000"]
    run = fedmuon.run([*keys, *many, "federation.rounds=2", f"run_dir={tmp_path / 'run'}"])
    partition = Partition.load(run.path / "partition.npz")
    assert len(partition) == 1_000_000
    assert (run.path / "partition.npz").stat().st_size < 1_000_000
    rows = rundir.read(run.path / "metrics.jsonl")
    assert all(row["train/cohort"] == 100_000 and 0 < row["train/trained"] < 100 for row in rows)
