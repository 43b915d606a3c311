"""Random streams keyed by what they are for, so that nothing depends on what ran before."""

from __future__ import annotations

import zlib

import numpy as np


def stream(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """An independent NumPy generator for one purpose ("cohort", "batches", ...) of one client in one round.

    The same four keys give the same numbers in every process, on every platform and after every resume.
    """
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), round, client])


def torch_seed(seed: int, purpose: str, round: int = 0, client: int = 0) -> int:
    """A 63-bit seed for a torch generator, keyed as in `stream`."""
    return int(stream(seed, purpose, round, client).integers(2**63 - 1))
