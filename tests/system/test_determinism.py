"""The same seed gives the same bits, whatever ran before and however clients are grouped; other seeds give others."""

from pathlib import Path

import numpy as np
import pytest
import torch

import fedmuon
from tests.system.runs import assert_same_run, command, rows, same, weights


def trained(overrides: list[str], name: str) -> Path:
    return fedmuon.run([*overrides, f"run_dir={name}"]).path


@pytest.mark.parametrize("algorithm", ["fedmuon", "fedadam"])
def test_same_seed_same_bits_whatever_ran_before(tiny, algorithm):
    first = trained([*tiny, f"algorithm={algorithm}"], "first")
    trained([*tiny, "algorithm=local_muon", "seed=5", "trainer.precision=64-true"], "between")
    torch.manual_seed(99)
    np.random.seed(99)
    torch.rand(7)
    assert_same_run(first, trained([*tiny, f"algorithm={algorithm}"], "again"))


def test_another_process_has_the_same_bits(tiny):
    first = trained(tiny, "first")
    done = command(*tiny, "run_dir=second")
    assert done.returncode == 0, done.stderr
    assert_same_run(first, Path("second"))


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_chunks_do_not_matter(tiny, chunk):
    assert_same_run(
        trained([*tiny, f"engine.chunk={chunk}"], "chunked"), trained([*tiny, "engine.chunk=null"], "whole")
    )


def test_seeds_follow_the_seed_unless_given(tiny):
    def of(*overrides: str) -> tuple[dict[str, torch.Tensor], list[int], list[list[int]]]:
        run = trained(
            [*tiny, "federation.rounds=1", "local.lr=0", "algorithm.adamw.lr=0", *overrides],
            f"run{len(list(Path().iterdir()))}",
        )
        with np.load(run / "partition.npz") as file:
            return weights(run), file["indices"].tolist(), [row["client"] for row in rows(run, "clients.jsonl")]

    first, second = of("seed=1"), of("seed=2")
    assert not same(first[0], second[0]) and first[1] != second[1]
    fixed = of("seed=2", "partition.seed=1", "model.seed=1", "data.seed=1")
    assert same(fixed[0], first[0]) and fixed[1] == first[1] and fixed[2] == second[2]


def test_different_seeds_differ(tiny):
    first, second = trained([*tiny, "seed=1"], "one"), trained([*tiny, "seed=2"], "two")
    assert rows(first) != rows(second) and not same(weights(first), weights(second))


def test_the_seed_alone_decides_cohorts_and_batches(tiny):
    fixed = [*tiny, "partition.seed=0", "model.seed=0", "data.seed=0"]
    assert rows(trained([*fixed, "seed=1"], "one")) != rows(trained([*fixed, "seed=2"], "two"))
