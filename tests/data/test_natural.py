"""The natural partition: each owner in the data is a client."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pfl_lightning.data import DataSpec, Fashion10k, Natural, Samples
from pfl_lightning.data.partitions import Population
from pfl_lightning.foundation.errors import ConfigError

OWNERS = np.array([2, 0, 2, 1, 0, 2, 0, 0, 2, 1, 2, 2])
NAMES = ("ann", "bob", "cem")


def population(num_clients: int = 0, num_train: int = 0, owners: Any = OWNERS) -> Population:
    labels = np.zeros(len(OWNERS), dtype=np.int64)
    return Population(labels, num_train, 1, num_clients, 0.25, owners, NAMES)


def test_each_owner_keeps_its_samples() -> None:
    parts = Natural().draw(population(), np.random.default_rng(0))
    assert (parts.train_sizes + parts.test_sizes).tolist() == [4, 2, 6]
    assert parts.test_sizes.tolist() == [1, 1, 2]
    assert OWNERS[parts.indices].tolist() == [0] * 4 + [1] * 2 + [2] * 6
    assert sorted(parts.indices.tolist()) == list(range(12))


def test_official_split_is_kept() -> None:
    parts = Natural().draw(population(num_train=8), np.random.default_rng(0))
    assert parts.train_sizes.tolist() == [4, 1, 3]
    assert parts.test_sizes.tolist() == [0, 1, 3]
    assert parts.indices.tolist() == [1, 4, 6, 7, 3, 9, 0, 2, 5, 8, 10, 11]


def test_fewer_clients_are_chosen_at_random_and_small_owners_left_out() -> None:
    chosen = {tuple(_owners(Natural().draw(population(2), np.random.default_rng(seed)))) for seed in range(20)}
    assert chosen == {(0, 1), (0, 2), (1, 2)}
    assert _owners(Natural(min_size=3).draw(population(), np.random.default_rng(0))) == [0, 2]


def _owners(parts: Any) -> list[int]:
    return list(dict.fromkeys(OWNERS[parts.indices].tolist()))


@pytest.mark.parametrize(
    ("partition", "about", "message"),
    [
        (Natural(), population(owners=None), "^partition: this data set does not say whose each sample is"),
        (Natural(), population(4), "^num_clients: 4 asked for, the data set has 3 owners with at least 1 samples"),
        (Natural(min_size=99), population(), "^num_clients: 1 asked for, the data set has 0 owners"),
        (Natural(), population(owners=np.array([0, 0, 1] + [0] * 9)), "^partition: client bob has a single sample"),
    ],
)
def test_refusals_name_the_cause(partition: Natural, about: Population, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        partition.draw(about, np.random.default_rng(0))


def test_min_size_must_be_positive() -> None:
    with pytest.raises(ConfigError, match=r"^min_size: 0 is not allowed"):
        Natural(min_size=0)


def test_image_sets_can_name_owners() -> None:
    class Writers(Fashion10k):
        spec = DataSpec((1, 2, 2), 1)

        def load(self) -> Samples:
            x = torch.zeros(12, 2, 2, 1, dtype=torch.uint8)
            return Samples(x, torch.zeros(12, dtype=torch.int64), 8, torch.from_numpy(OWNERS), NAMES)

    data = Writers(num_clients=2, partition=Natural(min_size=3))
    data.setup(0)
    assert data.client_names == ("ann", "cem")
    assert data.train_indices(1).tolist() == [0, 2, 5]
    assert data.warnings == ("data: 1 of 2 clients, client 0 (ann) first, have no test sample and will not be tested",)
