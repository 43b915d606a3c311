"""Memory: how many clients at once, what happens when there is too little, and that it does not grow."""

import resource
from typing import Any

import pytest
import torch

from fedmuon.engines import memory
from tests.engines.rounds import Rounds, algorithm_of, differences


def test_rows_of_a_stack_on_a_cpu_follow_from_the_model_alone() -> None:
    assert memory.rows_in_cache(200_000 * 4, 50) == 5  # parameters and gradients of five clients are 8 MB
    assert memory.rows_in_cache(10, 50) == 25  # two threads have work
    assert memory.rows_in_cache(10**9, 50) == 1 and memory.rows_in_cache(10, 1) == 1


def test_rows_that_fit_leave_a_fifth_of_the_memory_free() -> None:
    assert memory.rows_that_fit(1000, 100) == 8
    assert memory.rows_that_fit(50, 100) == 1


@pytest.mark.parametrize(
    "error,expected",
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
        (torch.AcceleratorError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("size mismatch"), False),
    ],
)
def test_what_counts_as_too_little_memory(error: Exception, expected: bool) -> None:
    assert memory.is_exhausted(error) is expected


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stack_too_large_is_halved_until_it_fits(workers: int, monkeypatch: Any) -> None:
    """Also in the middle of a cohort, after messages of other pieces have been taken."""
    from fedmuon.engines.stacked import Stacked

    expected = Rounds("mlp", algorithm_of("fedmuon"), torch.float64, name="stacked", workers=1).run()
    real = Stacked.train

    def small(self: Any, work: Any, broadcast: Any) -> Any:
        if len(work) > 1 and 3 in [one.client for one in work]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, work, broadcast)

    monkeypatch.setattr(Stacked, "train", small)
    one = Rounds("mlp", algorithm_of("fedmuon"), torch.float64, name="stacked", workers=workers)
    found = one.run()
    assert max(differences(expected, found, "mlp").values()) < 1e-10
    assert one.engine.notes == ["out of memory with 3 clients at once: 1 from here on"]
    other = Rounds("mlp", algorithm_of("fedmuon"), torch.float64, name="stacked", workers=1)
    other.engine.restore(one.engine.checkpoint())
    assert other.engine._rows(5) == 1  # a resumed run keeps the smaller stacks


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_memory_reaches_a_plateau(engine: str) -> None:
    one = Rounds("cnn", algorithm_of("fedmuon"), torch.float32, name=engine, workers=2)
    one.run(80, steps=1)  # by then every shape is recorded
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    one.run(120, steps=1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 3_000  # kB
