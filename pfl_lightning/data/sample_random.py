"""Random numbers of single samples.

Each number depends on (seed, sample, position) only. A sample is therefore changed in the same way in any batch, on any
rank and on any device.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from pfl_lightning.data.partitions.partition import Floats

# constants of SplitMix64 (Steele, Lea and Flood, 2014)
STEP = np.uint64(0x9E3779B97F4A7C15)
FIRST_FACTOR, SECOND_FACTOR = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class SampleRandom:
    """Random numbers for the samples of one batch.

    Args:
        seed: the batch's seed.
        samples: indices of the samples. # int64 [B]
    """

    def __init__(self, seed: int, samples: NDArray[np.int64]) -> None:
        start = _mix(np.array([seed % 2**64], dtype=np.uint64))
        self._keys = _mix(start + STEP * (samples.astype(np.uint64) + np.uint64(1)))

    def uniform(self, position: int, count: int) -> Floats:
        """Numbers in [0, 1): `count` for each sample, independent for each position. # [B, count]"""
        first = np.uint64((position << 16) + 1)
        counters = STEP * (first + np.arange(count, dtype=np.uint64))
        return (_mix(self._keys[:, None] + counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def seeds(self, position: int) -> list[int]:
        """A seed for each sample, for code that draws from global random states."""
        seeds = _mix(self._keys + STEP * np.array([(position << 16) + 1], dtype=np.uint64))
        return [int(seed) for seed in seeds >> np.uint64(1)]


@contextmanager
def preserved_random(device: torch.device) -> Iterator[None]:
    """Restore the global random states of Python, NumPy and torch at the end of the block."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def seed_all(seed: int, device: torch.device) -> None:
    """Seed the global random states of Python, NumPy and torch for one sample."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a hundred times longer
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64-bit numbers. Overflow is intended."""
    values = (values ^ (values >> np.uint64(30))) * FIRST_FACTOR
    values = (values ^ (values >> np.uint64(27))) * SECOND_FACTOR
    return values ^ (values >> np.uint64(31))
