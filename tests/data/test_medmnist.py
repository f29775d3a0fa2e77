"""OrganAMNIST and OrganCMNIST from small files in the official layout."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from pfl_lightning.data import IID, OrganAMNIST, OrganCMNIST
from pfl_lightning.data.download import file_md5
from pfl_lightning.data.medmnist import Release, measure
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.nets import CNN

SIZES = (5, 2, 3)


def write_npz(path: Path, seed: int) -> dict[str, np.ndarray]:
    rng, arrays = np.random.default_rng(seed), {}
    for part, size in zip(("train", "val", "test"), SIZES, strict=True):
        arrays[f"{part}_images"] = rng.integers(0, 256, (size, 28, 28), dtype=np.uint8)
        arrays[f"{part}_labels"] = rng.integers(0, 11, (size, 1), dtype=np.uint8)
    np.savez(path, **arrays)
    return arrays


@pytest.fixture
def small(tmp_path: Path) -> type[OrganAMNIST]:
    """The data set with the checksums of two small files, of which version 3 is in place."""
    write_npz(tmp_path / "two.npz", 2)
    write_npz(tmp_path / "organamnist.npz", 3)

    class Small(OrganAMNIST):
        releases: ClassVar[dict[int, Release]] = {
            2: Release(file_md5(tmp_path / "two.npz"), 1, SIZES),
            3: Release(file_md5(tmp_path / "organamnist.npz"), 1, SIZES),
        }

    return Small


def test_parts_are_merged_and_the_validation_part_is_for_training(tmp_path: Path, small: type[OrganAMNIST]) -> None:
    data = small(root=tmp_path, download=False)
    samples = data.load()
    arrays = write_npz(tmp_path / "same.npz", 3)
    parts = ("train", "val", "test")
    assert (samples.x[..., 0].numpy() == np.concatenate([arrays[f"{part}_images"] for part in parts])).all()
    assert samples.y.tolist() == np.concatenate([arrays[f"{part}_labels"] for part in parts])[:, 0].tolist()
    assert samples.num_train == 7
    assert data.name == "Small_v3"
    assert (tmp_path / "Small_v3.safetensors").is_file()


def test_training_images_have_mean_0_and_deviation_1(tmp_path: Path, small: type[OrganAMNIST]) -> None:
    data = small(root=tmp_path, download=False, num_clients=1, partition=IID())
    data.setup(0)
    x, _ = data.batch(torch.arange(7), torch.device("cpu"))
    assert float(x.mean()) == pytest.approx(0, abs=1e-5)
    assert float(x.std(correction=0)) == pytest.approx(1, abs=1e-5)


def test_measured_statistics_are_per_channel() -> None:
    images = torch.tensor([[[[0, 255], [255, 255]]]], dtype=torch.uint8)
    assert measure(images) == ((0.5, 1.0), (0.5, 0.0))


def test_the_other_version_is_recognised(tmp_path: Path, small: type[OrganAMNIST]) -> None:
    with pytest.raises(ConfigError, match=r"organamnist.npz is of version 3; set data.version to 3") as caught:
        small(version=2, root=tmp_path, download=False).load()
    assert "\n" not in str(caught.value)


def test_a_damaged_or_missing_file_is_reported_with_its_place(tmp_path: Path, small: type[OrganAMNIST]) -> None:
    (tmp_path / "organamnist.npz").write_bytes(b"half")
    with pytest.raises(ConfigError, match=r"organamnist.npz is damaged: its MD5 differs"):
        small(root=tmp_path, download=False).load()
    with pytest.raises(ConfigError) as caught:
        OrganCMNIST(root=tmp_path, download=False).load()
    message = str(caught.value)
    assert "organcmnist.npz is not there" in message
    assert f"put into {tmp_path} (data.root or PFL_DATA): organcmnist.npz of MedMNIST version 3 " in message
    assert "\n" not in message


def test_sizes_of_the_published_versions() -> None:
    assert sum(OrganAMNIST(version=2).sizes) == 58_850  # as the FedOBP paper counts
    assert sum(OrganAMNIST().sizes) == 58_830
    assert sum(OrganCMNIST(version=2).sizes) == 23_660
    assert sum(OrganCMNIST().sizes) == 23_583
    with pytest.raises(ConfigError, match="version: 1 is not allowed; use 2 or 3"):
        OrganAMNIST(version=1)  # type: ignore[arg-type]


def test_the_papers_net_has_the_papers_size() -> None:
    assert sum(p.numel() for p in CNN(OrganAMNIST.spec).parameters()) == 582_539
