"""Every file of conf/algorithm: it composes, runs, sends what a hand count says, and is in the table of the docs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedmuon.cli import checked_jobs
from fedmuon.compose import CONF
from tests.algorithms.runs import federated

ALGORITHMS = sorted(file.stem for file in (CONF / "algorithm").glob("*.yaml"))

# Numbers in the mlp of tests/algorithms/runs.py: x has 20 + 5 + 15 + 3, the matrices 20 + 15; it has 4 tensors.
X, MATRICES, TENSORS = 43, 35, 4
UP_AND_DOWN = {
    "fedavg": (X, X),
    "fedavgm": (X, X),
    "fedadam": (X, X),
    "fedyogi": (X, X),
    "fedadagrad": (X, X),
    "fedprox": (X, X),
    "fednova": (X, X),
    "feddyn": (X, X),  # its correction stays with the client, its mean with the server
    "scaffold": (2 * X, 2 * X),  # x and a control variate, both ways
    "fedcm": (X, 2 * X),  # x, G
    "mimelite": (2 * X, 2 * X),  # x and the full gradient; x, m
    "local_adamw": (X, X),
    "fedadamw": (X + TENSORS, 2 * X + TENSORS),  # x, block means of v; x, G, block means
    "fedlada": (2 * X, 3 * X),  # x, vh; x, G, vh
    "fedpac": (3 * X, 4 * X),  # x, m, v; x, G, m, v
    "fedpac_muon": (X + MATRICES, 2 * X + MATRICES),
    "local_muon": (X, X),
    "muloco": (X, X),
    "fedmuon": (X + MATRICES, 2 * X + MATRICES),  # x, M; x, G, M
    "fedmuon_published": (X + MATRICES, 2 * X + MATRICES),
    "local_muon_published": (X, X),
    "fedmuon_svd": (X + 10 + 9, 2 * X + MATRICES),  # x, M of 5 x 4 and 3 x 5 at rank 1; x, G, M
    "fedmuon_lmo": (2 * X, 2 * X),  # x and a control variate, both ways
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_composes_and_runs_two_rounds_with_the_payload_of_a_hand_count(name: str, tmp_path: Any) -> None:
    (job,) = checked_jobs([f"algorithm={name}"])
    assert job.config.algorithm is not None and job.saved.algorithm.name == name
    _, _, result = federated(tmp_path / "run", "mlp", name, rounds=2)
    rows = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    up, down = UP_AND_DOWN[name]
    assert [(row["comm/up_bytes"], row["comm/down_bytes"]) for row in rows] == [(3 * 8 * up, 3 * 8 * down)] * 2
    assert all(row["train/loss"] < 3 for row in rows)


def test_every_algorithm_is_counted_above() -> None:
    assert set(UP_AND_DOWN) == set(ALGORITHMS)


def test_algorithm_and_server_are_chosen_apart() -> None:
    (job,) = checked_jobs(["algorithm=fedmuon", "server=adam"])
    assert job.config.server.kind == "adam" and type(job.config.algorithm).__name__ == "Muon"
    (job,) = checked_jobs(["algorithm=fedavgm", "server=sgd"])
    assert job.config.server.momentum == 0


def test_the_table_of_the_docs_is_what_the_code_says() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "scripts/algorithms_table.py", "--check"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
