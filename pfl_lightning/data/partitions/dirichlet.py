"""Label skew drawn from a Dirichlet distribution, for each class or for each client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from pfl_lightning.data.partitions.deal import deal_mix, official_pools
from pfl_lightning.data.partitions.partition import Floats, Ints, Partition, Parts, Population, check_enough, split_each
from pfl_lightning.foundation.errors import ConfigError, require


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Spreads each class over the clients in proportions ~ Dir(alpha), with training and test parts merged.

    Clients differ in labels and in size. Each client then splits its samples by `test_share` (FedOBP, pFedSOP).
    """

    alpha: float = 0.3
    """Concentration: small values give few classes per client and unequal sizes, large values equal clients."""
    min_size: int = 10
    """Smallest number of samples of a client. The partition is drawn again until every client has it."""
    max_redraws: int = 10_000
    """Number of draws before the partition gives up with an error."""
    capped: bool = False
    """Give nothing more to a client that already has the average number of samples, as much benchmark code does."""

    def __post_init__(self) -> None:
        require(0 < self.alpha < float("inf"), "alpha", self.alpha, "a number above 0")
        require(self.min_size >= 2, "min_size", self.min_size, "2 or more: one sample to train on, one to test on")
        require(self.max_redraws >= 1, "max_redraws", self.max_redraws, "1 or more")

    @override
    def draw(self, population: Population, rng: np.random.Generator) -> Parts:
        check_enough(population, self.min_size)
        class_sizes = np.bincount(population.labels, minlength=population.num_classes).astype(np.int64)
        best = -1
        for _ in range(self.max_redraws):
            amounts = self._amounts(class_sizes, population.num_clients, rng)
            best = max(best, int(amounts.sum(axis=0).min()))
            if best >= self.min_size:
                return split_each(_hand_out(population.labels, amounts, rng), population, rng)
        raise ConfigError(
            f"alpha: in {self.max_redraws} draws with alpha {self.alpha} some of the {population.num_clients} clients "
            f"always had fewer than {self.min_size} samples (at best {best}); raise alpha, lower num_clients or "
            "lower min_size"
        )

    def _amounts(self, class_sizes: Ints, num_clients: int, rng: np.random.Generator) -> Ints:
        """Number of samples of each class that each client gets. # [num_classes, num_clients]"""
        shares = rng.dirichlet(np.full(num_clients, self.alpha), size=len(class_sizes))
        if not self.capped:
            return _cut(shares, class_sizes)
        even, held = class_sizes.sum() / num_clients, np.zeros(num_clients, dtype=np.int64)
        amounts = np.empty(shares.shape, dtype=np.int64)
        for row, (share, size) in enumerate(zip(shares, class_sizes, strict=True)):
            # the tiny number matters only if every client below the average drew a proportion of zero
            share = (share + 1e-300) * (held < even)
            amounts[row] = _cut(share[None] / share.sum(), size[None])[0]
            held += amounts[row]
        return amounts


@dataclass(frozen=True)
class ClientDirichlet(Partition):
    """Draws a label mix ~ Dir(alpha) for each client and uses it for training and test samples (FedPURIN).

    All clients have the same size. Training samples come from the official training part, test samples from the
    official test part. A set without that split is first split at random in the ratio of the two sizes. No sample is
    given twice. When a class runs out, the client takes the missing samples from the remaining classes in proportion to
    its mix, or in proportion to their sizes if its mix has none of them. The test mix follows the training samples that
    the client received.
    """

    alpha: float = 0.1
    """Concentration: small values give few classes per client, large values equal numbers of all classes."""
    train_size: int = 500
    """Number of training samples of every client."""
    test_size: int = 100
    """Number of test samples of every client."""

    def __post_init__(self) -> None:
        require(0 < self.alpha < float("inf"), "alpha", self.alpha, "a number above 0")
        require(self.train_size >= 1, "train_size", self.train_size, "1 or more")
        require(self.test_size >= 1, "test_size", self.test_size, "1 or more")

    @override
    def draw(self, population: Population, rng: np.random.Generator) -> Parts:
        mix = rng.dirichlet(np.full(population.num_classes, self.alpha), size=population.num_clients)
        pools = official_pools(population, self.test_size / (self.train_size + self.test_size), rng)
        return deal_mix(mix, pools, (self.train_size, self.test_size), population, spill=True)


def _cut(shares: Floats, class_sizes: Ints) -> Ints:
    """Whole numbers of samples in the given proportions, which add up to the size of each class."""
    edges = np.floor(np.cumsum(shares, axis=1) * class_sizes[:, None]).astype(np.int64)
    edges[:, -1] = class_sizes
    return np.diff(np.minimum(edges, class_sizes[:, None]), axis=1, prepend=0)


def _hand_out(labels: Ints, amounts: Ints, rng: np.random.Generator) -> Ints:
    """The client of every sample. The samples of a class are dealt in random order. # [N]"""
    clients = np.empty(len(labels), dtype=np.int64)
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    clients[order] = np.tile(np.arange(amounts.shape[1]), len(amounts)).repeat(amounts.ravel())
    return clients
