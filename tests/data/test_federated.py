"""Clients as indices into one set, and batches that are right."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pfl_lightning.data import DataSpec, Dirichlet, Fashion10k, FederatedData, Samples
from pfl_lightning.data.partitions import Parts
from pfl_lightning.foundation.errors import ConfigError

CPU = torch.device("cpu")


class Line(FederatedData):
    """A regression set: float inputs and targets, three clients."""

    spec = DataSpec((1,), 1)

    def load(self) -> Samples:
        x = torch.arange(12.0)[:, None]
        return Samples(x, 2 * x, 12)

    def draw(self, samples: Samples, rng: np.random.Generator) -> Parts:
        return Parts(rng.permutation(12), np.array([3, 2, 1]), np.array([1, 2, 3]))


@pytest.fixture(scope="module")
def fashion() -> Fashion10k:
    data = Fashion10k(num_clients=15, partition=Dirichlet(0.5))
    data.setup(1)
    return data


def test_data_that_are_no_images() -> None:
    data = Line(num_clients=3)
    data.setup(0)
    x, y = data.batch(data.train_indices(0), CPU)
    assert x.shape == (3, 1)
    assert y.equal(2 * x)
    assert data.label_counts().tolist() == [[3], [2], [1]]
    every = torch.cat([part(client) for client in range(3) for part in (data.train_indices, data.test_indices)])
    assert every.sort().values.equal(torch.arange(12))


def test_own_seed_wins_over_the_runs_seed() -> None:
    def indices(own: int | None, run: int) -> Tensor:
        data = Line(num_clients=3, seed=own)
        data.setup(run)
        return torch.from_numpy(data.parts().indices)

    assert indices(7, 1).equal(indices(7, 2))
    assert indices(None, 7).equal(indices(7, 1))
    assert not indices(None, 1).equal(indices(None, 2))


def test_embedded_set_is_fashion_mnists_test_part(fashion: Fashion10k) -> None:
    assert fashion.name == "Fashion10k"
    assert fashion.spec == DataSpec((1, 28, 28), 10)
    assert fashion.samples.x.shape == (10_000, 28, 28, 1)
    assert fashion.samples.x.dtype == torch.uint8
    assert torch.bincount(fashion.samples.y).tolist() == [1000] * 10
    assert fashion.samples.y[:5].tolist() == [9, 2, 1, 1, 6]
    pixels = fashion.samples.x.double() / 255
    assert round(float(pixels.mean()), 4) == fashion.mean[0]
    assert round(float(pixels.std(correction=0)), 4) == fashion.std[0]


def test_batches_are_normalised_channels_last(fashion: Fashion10k) -> None:
    indices = fashion.train_indices(2)
    x, y = fashion.batch(indices, CPU)
    assert x.shape == (len(indices), 1, 28, 28)
    assert x.is_contiguous(memory_format=torch.channels_last)
    expected = (fashion.samples.x[indices].permute(0, 3, 1, 2).double() / 255 - 0.2868) / 0.3524
    torch.testing.assert_close(x.double(), expected, rtol=1e-5, atol=1e-5)
    assert y.equal(fashion.samples.y[indices])
    assert fashion.samples.x.dtype == torch.uint8


def test_unit_scaling_and_colour_channels() -> None:
    class Colours(Fashion10k):
        spec = DataSpec((3, 2, 2), 2)
        mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 0.125)

        def load(self) -> Samples:
            generator = torch.Generator().manual_seed(0)
            x = torch.randint(0, 256, (40, 2, 2, 3), dtype=torch.uint8, generator=generator)
            return Samples(x, torch.arange(40) % 2, 0)

    for normalize, mean, std in [("standard", Colours.mean, Colours.std), ("unit", (0.0,) * 3, (1.0,) * 3)]:
        data = Colours(num_clients=2, normalize=normalize)  # type: ignore[arg-type]
        data.setup(0)
        x, _ = data.batch(torch.tensor([3, 1]), CPU)
        raw = data.samples.x[[3, 1]].permute(0, 3, 1, 2).double() / 255
        expected = (raw - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
        torch.testing.assert_close(x.double(), expected.double(), rtol=1e-5, atol=1e-5)
        assert x.is_contiguous(memory_format=torch.channels_last)
        data.to("cpu", channels_last=False)
        plain, _ = data.batch(torch.tensor([3, 1]), CPU)
        assert plain.is_contiguous()
        assert plain.equal(x)


def test_label_counts_are_those_of_the_training_samples(fashion: Fashion10k) -> None:
    counts = fashion.label_counts()
    assert counts.shape == (15, 10)
    for client in range(15):
        labels = fashion.samples.y[fashion.train_indices(client)].tolist()
        assert counts[client].tolist() == [labels.count(label) for label in range(10)]
    assert counts.sum(1).equal(fashion.train_sizes)


def test_moving_to_a_device_keeps_batches(fashion: Fashion10k) -> None:
    before = fashion.batch(torch.tensor([5, 6]), CPU)
    fashion.to("cpu")
    assert all(a.equal(b) for a, b in zip(before, fashion.batch(torch.tensor([5, 6]), CPU), strict=True))


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"num_clients": 0}, "num_clients"),
        ({"test_share": 1.0}, "test_share"),
        ({"test_share": 0.0}, "test_share"),
        ({"normalize": "other"}, "normalize"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_options_name_their_key(options: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: .* is not allowed; use "):
        Fashion10k(**options)  # type: ignore[arg-type]


def test_root_comes_from_the_option_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_DATA", "somewhere")
    assert str(Fashion10k().root) == "somewhere"
    assert str(Fashion10k(root="here").root) == "here"
    monkeypatch.delenv("PFL_DATA")
    assert str(Fashion10k().root) == "data"


def test_builds_from_yaml_by_short_names() -> None:
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--data", type=FederatedData)
    config = parser.parse_string(
        "data: {class_path: EMNIST, init_args: {split: balanced, num_clients: 7, partition: "
        "{class_path: Classes, init_args: {per_client: 3}}}}"
    )
    data = parser.instantiate(config).data
    assert (data.name, data.num_clients, data.partition.per_client) == ("EMNIST_balanced", 7, 3)
    assert data.spec == DataSpec((1, 28, 28), 47)
    default = parser.parse_args(["--data", "CIFAR10", "--data.partition.alpha", "0.7"])
    assert parser.instantiate(default).data.partition == Dirichlet(0.7)
