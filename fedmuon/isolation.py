"""What a run sets for its whole process, set back after it: jobs of one process are as alone as in processes apart."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only


@contextmanager
def isolated() -> Iterator[None]:
    """Threads, default dtype, determinism, global random states, environment and Ctrl-C are afterwards what they were.

    Meanwhile the process is the first: where Slurm or torchrun number it otherwise, Lightning's loggers write nothing.
    Convolutions on a GPU compute float32 as matrix products do: in TF32 only where
    torch.set_float32_matmul_precision allows it. What a run has held there is free for the next one.
    """
    environment = dict(os.environ)
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    matmul = _said(torch.get_float32_matmul_precision)
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    rough = matmul == "highest" and _said(lambda: torch.backends.cudnn.allow_tf32)
    if rough:
        torch.backends.cudnn.allow_tf32 = False
    anomaly = torch.is_anomaly_enabled()
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    rank, rank_zero_only.rank = rank_zero_only.rank, 0  # type: ignore[attr-defined]
    interrupted = signal.getsignal(signal.SIGINT)  # Lightning ignores it for good after the first
    try:
        yield
    finally:
        if interrupted is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupted)
        rank_zero_only.rank = rank  # type: ignore[attr-defined]
        for name in set(os.environ) - set(environment):
            del os.environ[name]
        os.environ.update({name: value for name, value in environment.items() if os.environ.get(name) != value})
        torch.set_default_dtype(dtype)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if matmul is not None and _said(torch.get_float32_matmul_precision) != matmul:
            torch.set_float32_matmul_precision(matmul)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = cudnn
        if rough:
            torch.backends.cudnn.allow_tf32 = True
        torch.autograd.set_detect_anomaly(anomaly)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if torch.cuda.is_initialized():
            gc.collect()  # a federation and its parts know one another
            with suppress(RuntimeError):  # of a fault of the device, which the run has told
                torch.cuda.empty_cache()


def _said(question: Callable[[], Any]) -> Any:
    """A setting's value; None where torch's newer names have set it, after which the older ones answer nothing."""
    try:
        return question()
    except RuntimeError:
        return None
