"""Validation samples and held-out clients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pfl_lightning.data import Dirichlet, Fashion10k, SavedPartition, save_partition
from pfl_lightning.data.partitions import Parts
from pfl_lightning.data.validation import draw_held_out, take_validation
from pfl_lightning.foundation.errors import ConfigError


def make(seed: int = 3, **options: float) -> Fashion10k:
    data = Fashion10k(num_clients=12, partition=Dirichlet(0.5), **options)  # type: ignore[arg-type]
    data.setup(seed)
    return data


def test_validation_is_taken_from_training_and_leaves_test_samples_alone() -> None:
    plain, data = make(), make(validation_share=0.2)
    for client in range(12):
        train, validation = data.train_indices(client), data.validation_indices(client)
        both = plain.train_indices(client)
        assert torch.cat([train, validation]).sort().values.equal(both.sort().values)
        assert len(validation) == max(1, round(0.2 * len(both)))
        assert train.equal(both[torch.isin(both, train)])  # the order stays
        assert data.test_indices(client).equal(plain.test_indices(client))
    assert data.train_sizes.tolist() == [len(data.train_indices(c)) for c in range(12)]
    assert data.validation_sizes.tolist() == [len(data.validation_indices(c)) for c in range(12)]
    assert data.label_counts().sum(1).equal(data.train_sizes)


def test_without_a_share_nothing_changes() -> None:
    data = make()
    assert data.validation_sizes.tolist() == [0] * 12
    assert len(data.validation_indices(3)) == 0
    assert data.held_out.tolist() == []


def test_choice_depends_on_seed_and_client_only() -> None:
    parts = Parts(np.arange(30), np.array([10, 12]), np.array([5, 3]))
    first = take_validation(parts, 0.3, 7)
    swapped = Parts(np.arange(30), np.array([10, 8]), np.array([5, 7]))  # another second client
    assert take_validation(swapped, 0.3, 7).indices[:15].tolist() == first.indices[:15].tolist()
    assert take_validation(parts, 0.3, 8).indices.tolist() != first.indices.tolist()
    assert first.validation_sizes.tolist() == [3, 4]
    twins = take_validation(Parts(np.arange(40), np.array([20, 20]), np.array([0, 0])), 0.5, 7).indices
    assert twins[:20].tolist() != (twins[20:] - 20).tolist()  # clients draw independently


def test_small_clients_keep_a_training_sample() -> None:
    parts = Parts(np.arange(8), np.array([1, 2, 3]), np.array([1, 1, 0]))
    for share, expected in ((0.01, [0, 1, 1]), (0.99, [0, 1, 2])):
        split = take_validation(parts, share, 0)
        assert split.validation_sizes.tolist() == expected
        assert (split.train_sizes + split.validation_sizes).tolist() == [1, 2, 3]


def test_a_saved_partition_gives_the_same_validation_samples(tmp_path: Path) -> None:
    data = make(validation_share=0.25)
    save_partition(data, tmp_path / "partition.safetensors")
    partition = SavedPartition(str(tmp_path / "partition.safetensors"))
    again = Fashion10k(num_clients=12, partition=partition, validation_share=0.25, seed=3)
    again.setup(99)
    for client in range(12):
        assert again.validation_indices(client).equal(data.validation_indices(client))
        assert again.train_indices(client).equal(data.train_indices(client))


def test_held_out_clients_are_drawn_by_seed() -> None:
    data = make(held_out_clients=0.25)
    assert len(data.held_out) == 3
    assert data.held_out.equal(make(held_out_clients=0.25).held_out)
    assert len({tuple(make(seed, held_out_clients=0.25).held_out.tolist()) for seed in range(5)}) > 1
    assert data.train_indices(int(data.held_out[0])).equal(make().train_indices(int(data.held_out[0])))
    assert draw_held_out(3, 0.01, 0).size == 1
    assert draw_held_out(3, 0.99, 0).size == 2
    with pytest.raises(ConfigError, match=r"^held_out_clients: 0.5 is not allowed; use 0 with a single client"):
        draw_held_out(1, 0.5, 0)


@pytest.mark.parametrize("key", ["validation_share", "held_out_clients"])
@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan")])
def test_fractions_are_checked(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: .* is not allowed; use a number from 0 to below 1"):
        Fashion10k(**{key: value})  # type: ignore[arg-type]
