"""Samples held back from training for validation, and clients held out of the federation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pfl_lightning.data.partitions.partition import Ints, Parts
from pfl_lightning.foundation.errors import require
from pfl_lightning.foundation.seeds import derive_seed


class Split(NamedTuple):
    """A partition whose training samples are split into training and validation samples."""

    indices: Ints
    """All samples of client 0, then of client 1, and so on: training, validation, test."""
    train_sizes: Ints
    """# [num_clients]"""
    validation_sizes: Ints
    """# [num_clients]"""


def take_validation(parts: Parts, share: float, seed: int) -> Split:
    """Move a fraction of each client's training samples to its validation samples.

    The choice depends on (seed, client) only. Each client with two or more training samples gives at least one and
    keeps at least one.
    """
    if share == 0:
        return Split(parts.indices, parts.train_sizes, np.zeros_like(parts.train_sizes))
    sizes = parts.train_sizes
    most = np.maximum(0, sizes - 1)  # a client may have no training samples
    counts = np.clip(np.rint(sizes * share).astype(np.int64), np.minimum(1, most), most)
    starts = np.cumsum(sizes + parts.test_sizes) - sizes - parts.test_sizes
    indices = parts.indices.copy()
    for client, (start, size, count) in enumerate(zip(starts, sizes, counts, strict=True)):
        rng = np.random.default_rng(derive_seed(seed, "validation_share", client))
        taken = np.zeros(size, dtype=bool)
        taken[rng.permutation(size)[:count]] = True
        mine = parts.indices[start : start + size]
        indices[start : start + size] = np.concatenate([mine[~taken], mine[taken]])
    return Split(indices, sizes - counts, counts)


def draw_held_out(num_clients: int, share: float, seed: int) -> Ints:
    """The clients that never train, in ascending order: at least one, and not all, unless `share` is 0."""
    if share == 0:
        return np.empty(0, dtype=np.int64)
    require(num_clients >= 2, "held_out_clients", share, "0 with a single client")
    count = min(max(1, round(share * num_clients)), num_clients - 1)
    rng = np.random.default_rng(derive_seed(seed, "held_out_clients"))
    return np.sort(rng.choice(num_clients, count, replace=False)).astype(np.int64)
