"""Torch's global settings, left as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Leave torch's random state and number of threads as they were."""
    threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng([]):
            torch.set_num_threads(1)
            yield
    finally:
        torch.set_num_threads(threads)
