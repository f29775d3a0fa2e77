"""The papers' configs set the normalisation, augmentation and partition seed of the published numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pfl_lightning.cli.parser import build_parser, instantiate, parse
from pfl_lightning.data import ImageData, Samples

CONFIGS = Path(__file__).parents[2] / "configs"
CPU = torch.device("cpu")
STATISTICS = {
    "cifar10": ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]),
    "cifar100": ([0.5071, 0.4865, 0.4409], [0.2009, 0.1984, 0.2023]),
    "svhn": ([0.4377, 0.4438, 0.4728], [0.1201, 0.1231, 0.1052]),
    "mnist": ([0.1307], [0.3015]),
    "fmnist": ([0.286], [0.3205]),
    "emnist": ([0.1736], [0.3248]),
}


def data_of(config: str, *words: str) -> ImageData:
    parser = build_parser()
    parts: dict[str, Any] = instantiate(parser, parse(parser, ["--config", str(CONFIGS / f"{config}.yaml"), *words]))
    data = parts["data"]
    assert isinstance(data, ImageData)
    return data


def with_samples(data: ImageData, monkeypatch: pytest.MonkeyPatch, count: int = 6000) -> ImageData:
    """Set the data up with random bytes in place of its files."""
    channels, height, width = data.spec.shape
    images = torch.randint(0, 256, (count, height, width, channels), generator=torch.Generator().manual_seed(0))
    labels = torch.arange(count) % data.spec.num_classes
    samples = Samples(images.to(torch.uint8), labels, count * 4 // 5)
    monkeypatch.setattr("pfl_lightning.data.images.obtain", lambda recipe, root, download: samples)
    data.setup(0)
    return data


@pytest.mark.parametrize("alpha", ["01", "05"])
@pytest.mark.parametrize("key", STATISTICS)
def test_fedobp_uses_its_authors_statistics_and_one_partition(key: str, alpha: str) -> None:
    data = data_of(f"fedobp_{key}_dir{alpha}")
    mean, std = STATISTICS[key]
    assert data.normalize == {"mean": mean, "std": std}
    assert (data.seed, data.num_clients, data.test_share) == (0, 100, 0.25)


def test_batches_are_normalised_with_the_authors_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    data = with_samples(data_of("fedobp_mnist_dir05"), monkeypatch)
    x, _ = data.batch(torch.arange(3), CPU)
    pixels = data.samples.x[:3, :, :, 0].double() / 255
    torch.testing.assert_close(x[:, 0].double(), (pixels - 0.1307) / 0.3015, atol=1e-5, rtol=0)


def test_medical_images_are_normalised_correctly_unless_the_slip_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    data = data_of("fedobp_organa_dir05")
    assert sum(data.sizes) == 58_850
    x, _ = with_samples(data, monkeypatch).batch(torch.arange(4800), CPU)
    assert float(x.std()) == pytest.approx(1, abs=1e-3)
    slip = data_of("fedobp_organa_dir05", "--data.normalize", "{mean: 118.7546, std: 62.3489}")
    x, _ = with_samples(slip, monkeypatch).batch(torch.arange(4800), CPU)
    assert float(x.mean()) == pytest.approx((0.5 - 118.7546) / 62.3489, abs=1e-3)
    assert float(x.std()) < 0.005  # almost constant images


def test_fedpurin_crops_after_the_normalisation(monkeypatch: pytest.MonkeyPatch) -> None:
    data = with_samples(data_of("fedpurin_cifar100"), monkeypatch, 15_000)
    indices = torch.arange(200)
    plain, _ = data.batch(indices, CPU)
    changed, _ = data.batch(indices, CPU, augment_seed=1)
    assert changed.shape == plain.shape
    assert not torch.equal(changed, plain)
    # a border of the crop is zero after the normalisation, which black (mean above 0) is not
    assert float((changed[:, :, 0] == 0).float().mean()) > 0.2
    assert data.seed is None  # each of the paper's seeds has its own partition


@pytest.mark.parametrize("config", ["fedselect_cifar10", "fedselect_cifar10c"])
def test_fedselect_crops_and_flips_and_uses_the_statistics_of_imagenet(config: str) -> None:
    data = data_of(config)
    assert data.normalize == {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    assert data.transforms == [{"RandomCrop": {"size": 32, "padding": 4}}, "RandomHorizontalFlip"]
    assert (data.seed, data.num_clients) == (0, 10)


def test_fedselect_uses_a_fifth_of_mini_imagenet(monkeypatch: pytest.MonkeyPatch) -> None:
    data = data_of("fedselect_miniimagenet")
    labels = torch.arange(60_000) % 100
    monkeypatch.setattr(type(data), "load", lambda self: Samples(torch.zeros(60_000, 1, 1, 3).byte(), labels, 0))
    parts = data.draw(data.load(), np.random.default_rng(0))
    assert parts.train_sizes.tolist() == [500] * 20
    owned = labels[torch.from_numpy(parts.indices)].view(20, 600)
    assert [len(row.unique()) for row in owned] == [10] * 20
    assert parts.train_sizes.sum() == 0.2 * 500 * 100
