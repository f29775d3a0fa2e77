"""Saving, loading and refusing partitions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from pfl_lightning.data import Dirichlet, Fashion10k, SavedPartition, save_partition
from pfl_lightning.foundation.errors import ConfigError


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Fashion10k, Path]:
    data, path = Fashion10k(num_clients=12, partition=Dirichlet(0.3)), tmp_path / "deep" / "partition.safetensors"
    data.setup(4)
    save_partition(data, path)
    return data, path


def test_comes_back_the_same_whatever_the_seed(saved: tuple[Fashion10k, Path]) -> None:
    data, path = saved
    again = Fashion10k(num_clients=12, partition=SavedPartition(str(path)))
    again.setup(99)
    for client in range(12):
        assert again.train_indices(client).equal(data.train_indices(client))
        assert again.test_indices(client).equal(data.test_indices(client))


def test_refuses_what_does_not_fit(saved: tuple[Fashion10k, Path], tmp_path: Path) -> None:
    _, path = saved
    with pytest.raises(ConfigError, match=r"^num_clients: 13 clients asked for, .* has 12$"):
        Fashion10k(num_clients=13, partition=SavedPartition(str(path))).setup(0)
    with pytest.raises(ConfigError, match=r"^path: .*not a saved partition"):
        Fashion10k(num_clients=12, partition=SavedPartition(str(tmp_path / "none"))).setup(0)

    class Relabelled(Fashion10k):
        def load(self):  # type: ignore[no-untyped-def]
            samples = super().load()
            return samples._replace(y=samples.y.flip(0))

    with pytest.raises(ConfigError, match=r"^path: .* is of Fashion10k with 10000 samples, not of this data set"):
        Relabelled(num_clients=12, partition=SavedPartition(str(path))).setup(0)


@pytest.mark.parametrize("damage", ["range", "sizes", "missing"])
def test_refuses_a_damaged_file(saved: tuple[Fashion10k, Path], damage: str) -> None:
    _, path = saved
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    if damage == "range":
        tensors["indices"][0] = 10_000
    elif damage == "sizes":
        tensors["train_sizes"][0] += 1
    else:
        del tensors["test_sizes"]
    save_file(tensors, path, metadata)
    with pytest.raises(ConfigError, match=r"^path: "):
        Fashion10k(num_clients=12, partition=SavedPartition(str(path))).setup(0)


def test_a_saved_partition_is_small(saved: tuple[Fashion10k, Path]) -> None:
    assert saved[1].stat().st_size < 8 * 10_000 + 2000
    assert load_file(saved[1])["indices"].dtype == torch.int64
