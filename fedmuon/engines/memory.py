"""What a chunk of clients may take of the memory, and memory that is kept instead of given back in every step."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable
from functools import cache

import torch
from torch import Tensor

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MAX = -1, -3, 2**30
_CACHE = 8 * 2**20  # parameters and gradients of a stack on a CPU should fit the processor's cache: bytes


@cache
def keep() -> None:
    """Let glibc keep freed blocks for the next step: asking the system anew costs page faults. Elsewhere nothing."""
    if sys.platform == "linux":
        try:
            mallopt = ctypes.CDLL(None).mallopt
        except (OSError, AttributeError):  # another C library
            return
        mallopt(_MMAP_THRESHOLD, _MAX)
        mallopt(_TRIM_THRESHOLD, _MAX)


def rows_in_cache(parameter_bytes: int, cohort: int) -> int:
    """Clients in one stack on a CPU: a function of the model and the cohort alone, at least one, at most half of it."""
    return max(1, min(_CACHE // max(1, 2 * parameter_bytes), -(-cohort // 2)))


def is_exhausted(error: BaseException) -> bool:
    """Whether an exception says that there was too little memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    said = ("DefaultCPUAllocator", "CUDA error: out of memory", "_STATUS_ALLOC_FAILED")  # torch, the driver, libraries
    return isinstance(error, RuntimeError) and any(one in str(error) for one in said)


def footprint(device: torch.device, run: Callable[[], object]) -> int:
    """Bytes that `run` needs on a CUDA device at its peak."""
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    return torch.cuda.max_memory_allocated(device) - before


def held(tensors: Iterable[Tensor]) -> int:
    """Bytes of tensors."""
    return sum(t.numel() * t.element_size() for t in tensors)


def free(device: torch.device) -> int:
    """Bytes that are free on a CUDA device, those that torch holds in reserve included."""
    reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + reserve


def rows_that_fit(free: int, need: int) -> int:
    """Clients for whom there is memory, where one needs so many bytes; a fifth stays free."""
    return max(1, int(0.8 * free) // max(1, need))
