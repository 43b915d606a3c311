"""What a run sets for its whole process, set back after it: jobs of one process are as alone as in processes apart."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def isolated() -> Iterator[None]:
    """Threads, default dtype, determinism, global random states and environment are afterwards what they were."""
    environment = dict(os.environ)
    dtype, threads, matmul = torch.get_default_dtype(), torch.get_num_threads(), torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    anomaly = torch.is_anomaly_enabled()
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        for name in set(os.environ) - set(environment):
            del os.environ[name]
        os.environ.update({name: value for name, value in environment.items() if os.environ.get(name) != value})
        torch.set_default_dtype(dtype)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if torch.get_float32_matmul_precision() != matmul:
            torch.set_float32_matmul_precision(matmul)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = cudnn
        torch.autograd.set_detect_anomaly(anomaly)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
