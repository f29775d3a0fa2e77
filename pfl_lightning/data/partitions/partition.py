"""The interface of a partition: a rule that deals the samples of a data set to the clients."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pfl_lightning.foundation.errors import ConfigError

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


class Population(NamedTuple):
    """The facts that a partition may use."""

    labels: Ints
    """Class of every sample, the official training part first. # [N]"""
    num_train: int
    """Size of the official training part. 0 or N when the data set has no official split."""
    num_classes: int
    num_clients: int
    """Number of clients. 0 lets `Natural` take every owner."""
    test_share: float
    """Fraction of a client's samples that it is tested on, for rules that do not deal test samples separately."""
    owners: Ints | None = None
    """Number of the owner of every sample, if the data set knows it. # [N]"""
    owner_names: tuple[str, ...] = ()
    """Names of the owners for messages. May be empty."""
    targets: NDArray[np.generic] | None = None
    """The numbers to predict, if the data set has no classes. `labels` are all 0 then. # [N, K]"""


class Parts(NamedTuple):
    """The samples of every client in one flat array, so that 100 000 clients cost no more than their samples."""

    indices: Ints
    """All samples of client 0, then of client 1, and so on. Each client's training samples come before its test
    samples."""
    train_sizes: Ints
    """# [num_clients]"""
    test_sizes: Ints
    """# [num_clients]"""


class Partition:
    """Deals samples to clients. A subclass is a dataclass whose fields are its settings, and overrides `draw`."""

    def draw(self, population: Population, rng: np.random.Generator) -> Parts:
        """Deal the samples. The result may depend on `population` and `rng` only, so that every rank draws the same."""
        raise NotImplementedError


def check_enough(population: Population, smallest: int = 2) -> None:
    """Refuse more clients than can get `smallest` samples each (two: one to train on and one to test on)."""
    samples, clients = len(population.labels), population.num_clients
    if clients * smallest > samples:
        raise ConfigError(
            f"num_clients: {clients} clients with at least {smallest} samples each need {clients * smallest}, "
            f"the data set has {samples}; lower num_clients"
        )


def by_client(train: tuple[Ints, Ints], test: tuple[Ints, Ints], num_clients: int) -> Parts:
    """Build `Parts` from the training and the test samples, each given as (indices, client of each index)."""
    indices = np.concatenate([train[0], test[0]])
    order = np.argsort(np.concatenate([2 * train[1], 2 * test[1] + 1]), kind="stable")
    sizes = [np.bincount(clients, minlength=num_clients).astype(np.int64) for _, clients in (train, test)]
    return Parts(indices[order], sizes[0], sizes[1])


def split_each(clients: Ints, population: Population, rng: np.random.Generator) -> Parts:
    """Split every client's samples at random into training and test samples.

    Args:
        clients: the client of every sample, or -1 if nobody has it. # [N]
        population: gives the number of clients and `test_share`. Each part keeps at least one sample.
        rng: shuffles each client's samples.
    """
    order = rng.permutation(len(clients))
    order = order[clients[order] >= 0]
    order = order[np.argsort(clients[order], kind="stable")]
    sizes = np.bincount(clients[order], minlength=population.num_clients).astype(np.int64)
    if sizes.min() < 2:
        raise ConfigError(
            f"num_clients: client {sizes.argmin()} gets {sizes.min()} samples and needs one to train on and one to "
            "test on; lower num_clients"
        )
    test_sizes = np.clip(np.rint(sizes * population.test_share).astype(np.int64), 1, sizes - 1)
    return Parts(order, sizes - test_sizes, test_sizes)
