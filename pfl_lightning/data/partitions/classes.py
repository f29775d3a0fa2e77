"""Partitions by classes, by shards of sorted samples, and without skew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from pfl_lightning.data.partitions.deal import deal_mix, official_pools
from pfl_lightning.data.partitions.partition import Ints, Partition, Parts, Population, check_enough, split_each
from pfl_lightning.foundation.errors import ConfigError, require


@dataclass(frozen=True)
class IID(Partition):
    """Every client gets equally many samples of the merged training and test parts, drawn at random."""

    @override
    def draw(self, population: Population, rng: np.random.Generator) -> Parts:
        check_enough(population)
        clients = np.arange(len(population.labels)) % population.num_clients
        return split_each(rng.permutation(clients), population, rng)


@dataclass(frozen=True)
class Shards(Partition):
    """Sorts the merged data set by label, cuts it into equal shards and gives each client some of them (pFedSOP)."""

    num_shards: int | None = None
    """Total number of shards. By default as many as the clients take. Nobody gets the remaining shards."""
    per_client: int = 2
    """Number of shards of each client, which is about its number of classes."""

    def __post_init__(self) -> None:
        require(self.num_shards is None or self.num_shards >= 1, "num_shards", self.num_shards, "1 or more, or null")
        require(self.per_client >= 1, "per_client", self.per_client, "1 or more")

    @override
    def draw(self, population: Population, rng: np.random.Generator) -> Parts:
        samples, taken = len(population.labels), population.num_clients * self.per_client
        num_shards = taken if self.num_shards is None else self.num_shards
        if num_shards > samples:
            raise ConfigError(
                f"num_shards: {num_shards} shards are more than the data set's {samples} samples; lower num_shards, "
                "per_client or num_clients"
            )
        if taken > num_shards:
            raise ConfigError(
                f"num_shards: {population.num_clients} clients x {self.per_client} per client need {taken} shards, "
                f"there are {num_shards}; raise num_shards or lower per_client or num_clients"
            )
        order = rng.permutation(samples)
        order = order[np.argsort(population.labels[order], kind="stable")]
        shard_client = np.full(num_shards, -1, dtype=np.int64)
        shard_client[rng.permutation(num_shards)[:taken]] = np.arange(taken) // self.per_client
        clients = np.empty(samples, dtype=np.int64)
        clients[order] = shard_client[np.arange(samples) * num_shards // samples]
        return split_each(clients, population, rng)


@dataclass(frozen=True)
class Classes(Partition):
    """Every client gets a few classes. Every class goes to equally many clients, up to one (FedSelect)."""

    per_client: int = 2
    """Number of classes of each client."""
    train_size: int | None = None
    """Number of training samples of each client, from the official training part. By default the merged samples of a
    class are divided equally among its clients, who split their samples by `test_share`."""
    test_size: int | None = None
    """Number of test samples of each client, from the official test part. By default it follows from `train_size` and
    `test_share`."""

    def __post_init__(self) -> None:
        require(self.per_client >= 1, "per_client", self.per_client, "1 or more")
        require(self.train_size is None or self.train_size >= 1, "train_size", self.train_size, "1 or more, or null")
        require(self.test_size is None or self.test_size >= 1, "test_size", self.test_size, "1 or more, or null")
        if self.test_size is not None and self.train_size is None:
            raise ConfigError("test_size: train_size is missing; set both or neither")

    @override
    def draw(self, population: Population, rng: np.random.Generator) -> Parts:
        check_enough(population)
        require(
            self.per_client <= population.num_classes,
            "per_client",
            self.per_client,
            f"at most the {population.num_classes} classes",
        )
        has = _choose_classes(population.num_clients, population.num_classes, self.per_client, rng)
        if self.train_size is None:
            return split_each(_divide_classes(has, population.labels, rng), population, rng)
        by_share = max(1, round(self.train_size * population.test_share / (1 - population.test_share)))
        sizes = self.train_size, self.test_size if self.test_size is not None else by_share
        pools = official_pools(population, sizes[1] / sum(sizes), rng)
        return deal_mix(has / self.per_client, pools, sizes, population, spill=False)


def _choose_classes(num_clients: int, num_classes: int, per_client: int, rng: np.random.Generator) -> Ints:
    """1 where a client has a class. Each client takes the classes used least so far. # [num_clients, num_classes]"""
    has = np.zeros((num_clients, num_classes), dtype=np.int64)
    used = np.zeros(num_classes, dtype=np.int64)
    for client, tie in enumerate(rng.random((num_clients, num_classes))):
        chosen = np.argsort(used + tie)[:per_client]
        has[client, chosen] = 1
        used[chosen] += 1
    return has


def _divide_classes(has: Ints, labels: Ints, rng: np.random.Generator) -> Ints:
    """The client of every sample, or -1 if nobody has its class. Clients divide a class equally. # [N]"""
    clients = np.full(len(labels), -1, dtype=np.int64)
    for label in range(has.shape[1]):
        owners = np.flatnonzero(has[:, label])
        members = rng.permutation(np.flatnonzero(labels == label))
        if len(owners):
            clients[members] = owners[np.arange(len(members)) % len(owners)]
    return clients
