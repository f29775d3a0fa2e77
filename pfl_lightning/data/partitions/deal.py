"""Deals a fixed number of samples to each client according to its label mix."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pfl_lightning.data.partitions.partition import Floats, Ints, Parts, Population, by_client
from pfl_lightning.foundation.errors import ConfigError


class Pool(NamedTuple):
    """Samples to deal, sorted by class and in random order within a class."""

    indices: Ints
    class_sizes: Ints
    """# [num_classes]"""


def official_pools(population: Population, test_share: float, rng: np.random.Generator) -> tuple[Pool, Pool]:
    """The official training and test parts. Without them, a random `test_share` of each class is the test part."""
    labels, count = population.labels, len(population.labels)
    order = rng.permutation(count)
    order = order[np.argsort(labels[order], kind="stable")]
    if 0 < population.num_train < count:
        is_test = order >= population.num_train
    else:
        sizes = np.bincount(labels, minlength=population.num_classes)
        place = np.arange(count) - (np.cumsum(sizes) - sizes)[labels[order]]
        is_test = place < np.rint(sizes * test_share)[labels[order]]
    train, test = order[~is_test], order[is_test]
    return _pool(train, population), _pool(test, population)


def deal_mix(
    mix: Floats, pools: tuple[Pool, Pool], sizes: tuple[int, int], population: Population, spill: bool
) -> Parts:
    """Deal `sizes` training and test samples to each client.

    Args:
        mix: label mix of each client. Each row adds up to 1. # [num_clients, num_classes]
        pools: training and test samples.
        sizes: number of training and test samples of every client.
        population: gives the number of clients.
        spill: whether a client may get classes outside its mix when its own classes have run out.
    """
    got = _amounts(mix, pools[0], sizes[0], "train_size", spill)
    same_mix = got / sizes[0]
    got_test = _amounts(same_mix, pools[1], sizes[1], "test_size", spill)
    return by_client(_take(pools[0], got), _take(pools[1], got_test), population.num_clients)


def largest_remainder(mix: Floats, total: int) -> Ints:
    """Round the proportions of each row to whole numbers that add up to `total` (largest-remainder method)."""
    exact = mix * total
    whole = np.floor(exact).astype(np.int64)
    missing = total - whole.sum(axis=1, keepdims=True)
    rank = np.argsort(np.argsort(-(exact - whole), axis=1, kind="stable"), axis=1, kind="stable")
    whole += rank < missing
    return whole


def _pool(indices: Ints, population: Population) -> Pool:
    sizes = np.bincount(population.labels[indices], minlength=population.num_classes)
    return Pool(indices, sizes.astype(np.int64))


def _amounts(mix: Floats, pool: Pool, size: int, key: str, spill: bool) -> Ints:
    """Number of samples of each class that each client gets from `pool`. # [num_clients, num_classes]"""
    needed, there = size * len(mix), len(pool.indices)
    if needed > there:
        raise ConfigError(
            f"{key}: {len(mix)} clients x {size} samples need {needed}, there are {there}; lower {key} or num_clients"
        )
    want = largest_remainder(mix, size)
    asked_before = np.cumsum(want, axis=0) - want
    got = np.clip(pool.class_sizes - asked_before, 0, want)
    left = pool.class_sizes - got.sum(axis=0)
    for client in np.flatnonzero(got.sum(axis=1) < size):
        extra = _refill(mix[client], left, size - int(got[client].sum()), spill)
        if extra is None:
            raise ConfigError(
                f"{key}: the classes of client {client} have too few samples for {size}; lower {key} or num_clients"
            )
        got[client] += extra
        left -= extra
    return got


def _refill(mix: Floats, left: Ints, short: int, spill: bool) -> Ints | None:
    """Take `short` more samples from the remaining classes, or None if none of the allowed classes is left."""
    taken = np.zeros_like(left)
    while taken.sum() < short:
        weights = mix * (left > taken)
        if not weights.any():
            if not spill:
                return None
            weights = (left - taken).astype(np.float64)
        more = largest_remainder((weights / weights.sum())[None], short - int(taken.sum()))[0]
        taken += np.minimum(more, left - taken)
    return taken


def _take(pool: Pool, amounts: Ints) -> tuple[Ints, Ints]:
    """The first samples of each class in the pool, and the client of each sample."""
    starts = np.cumsum(pool.class_sizes) - pool.class_sizes
    used = amounts.sum(axis=0)
    within = np.arange(used.sum()) - (np.cumsum(used) - used).repeat(used)
    clients = np.tile(np.arange(len(amounts)), amounts.shape[1]).repeat(amounts.T.ravel())
    return pool.indices[starts.repeat(used) + within], clients
