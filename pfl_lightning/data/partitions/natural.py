"""The natural partition: the data set itself says whose each sample is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from pfl_lightning.data.partitions.partition import Ints, Partition, Parts, Population, by_client, split_each
from pfl_lightning.foundation.errors import ConfigError, require


@dataclass(frozen=True)
class Natural(Partition):
    """Each client is one owner in the data set: a person, a writer, a device, a domain or a file.

    Clients keep the official split into training and test samples where the data set has one. Otherwise each client
    splits its own samples by `test_share`. With fewer clients than owners, the owners are chosen at random.
    """

    min_size: int = 1
    """Leave out owners with fewer samples than this."""

    def __post_init__(self) -> None:
        require(self.min_size >= 1, "min_size", self.min_size, "1 or more")

    @override
    def draw(self, population: Population, rng: np.random.Generator) -> Parts:
        if population.owners is None:
            raise ConfigError(
                "partition: this data set does not say whose each sample is; use Dirichlet, IID or Shards"
            )
        chosen = self._choose(population.owners, population.num_clients, rng)
        number = np.full(int(population.owners.max()) + 1, -1, dtype=np.int64)
        number[chosen] = np.arange(len(chosen))
        clients = number[population.owners]
        if 0 < population.num_train < len(clients):
            return _keep_official_split(clients, population.num_train, len(chosen))
        _check_sizes(clients, chosen, population)
        return split_each(clients, population._replace(num_clients=len(chosen)), rng)

    def _choose(self, owners: Ints, wanted: int, rng: np.random.Generator) -> Ints:
        """The owners that become clients, in ascending order. All large enough ones when `wanted` is 0."""
        large_enough = np.flatnonzero(np.bincount(owners) >= self.min_size).astype(np.int64)
        if wanted > len(large_enough) or not len(large_enough):
            raise ConfigError(
                f"num_clients: {wanted or 1} asked for, the data set has {len(large_enough)} owners with at least "
                f"{self.min_size} samples; lower num_clients or min_size"
            )
        if wanted in (0, len(large_enough)):
            return large_enough
        return np.sort(rng.choice(large_enough, wanted, replace=False))


def owner_names(parts: Parts, owners: Ints, names: tuple[str, ...]) -> tuple[str, ...]:
    """The owner's name of each client, or nothing if some client has samples of several owners."""
    sizes = parts.train_sizes + parts.test_sizes
    if not names or not len(sizes) or sizes.min() < 1:
        return ()
    owner, first = owners[parts.indices], np.cumsum(sizes) - sizes
    if not np.array_equal(owner, owner[first].repeat(sizes)):
        return ()
    return tuple(names[of] for of in owner[first].tolist())


def _keep_official_split(clients: Ints, num_train: int, num_clients: int) -> Parts:
    used = np.flatnonzero(clients >= 0)
    train, test = used[used < num_train], used[used >= num_train]
    return by_client((train, clients[train]), (test, clients[test]), num_clients)


def _check_sizes(clients: Ints, chosen: Ints, population: Population) -> None:
    """Refuse a client that cannot split its samples, and say who it is."""
    sizes = np.bincount(clients[clients >= 0], minlength=len(chosen))
    if sizes.min() < 2:
        owner = int(chosen[sizes.argmin()])
        name = population.owner_names[owner] if population.owner_names else str(owner)
        raise ConfigError(
            f"partition: client {name} has a single sample and needs one to train on and one to test on; "
            "set min_size of the partition Natural to 2 to leave such clients out"
        )
