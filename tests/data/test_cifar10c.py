"""CIFAR-10-C from small files in the official layout."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from pfl_lightning.data import CIFAR10C, Classes, SavedPartition, save_partition
from pfl_lightning.foundation.errors import ConfigError

COUNT = 40
NAMES = ["fog", "frost", "saturate"]


class Small(CIFAR10C):
    sizes = (0, COUNT)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The red value of an image is its number, green its corruption and blue its severity."""
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    for kind, name in enumerate(NAMES):
        images = np.zeros((5, COUNT, 32, 32, 3), dtype=np.uint8)
        images[..., 0] = np.arange(COUNT)[None, :, None, None]
        images[..., 1] = kind
        images[..., 2] = np.arange(1, 6)[:, None, None, None]
        np.save(folder / f"{name}.npy", images.reshape(-1, 32, 32, 3))
    np.save(folder / "labels.npy", np.tile(np.arange(COUNT, dtype=np.uint8) % 10, 5))
    return tmp_path


def made(root: Path, **settings: object) -> Small:
    classes = Classes(per_client=2, train_size=3, test_size=2)
    data = Small(NAMES, root=root, **{"num_clients": 5, "partition": classes, **settings})  # type: ignore[arg-type]
    data.setup(0)
    return data


def test_clients_differ_by_corruption_and_by_label(root: Path) -> None:
    data = made(root)
    owners: dict[int, int] = {}
    for client in range(5):
        indices = torch.cat([data.train_indices(client), data.test_indices(client)])
        pixels, labels = data.samples.x[indices, 0, 0], data.samples.y[indices]
        assert len(indices) == 5
        assert set(pixels[:, 1].tolist()) == {client % 3}
        assert len(set(labels.tolist())) == 2
        assert (labels == pixels[:, 0] % 10).all()
        for number in pixels[:, 0].tolist():
            assert number not in owners  # no original image has two owners, whatever the corruption
            owners[number] = client
    assert len(owners) == 25


@pytest.mark.parametrize("severity", [1, 5])
def test_only_the_wanted_severity_is_read(root: Path, severity: int) -> None:
    samples = made(root, severity=severity).samples
    assert set(samples.x[..., 2].flatten().tolist()) == {severity}
    assert samples.x.shape == (3 * COUNT, 32, 32, 3)


def test_corruptions_without_a_client_are_not_read(root: Path) -> None:
    (root / "CIFAR-10-C" / "saturate.npy").unlink()
    assert len(made(root, num_clients=2).samples.y) == 2 * COUNT
    with pytest.raises(ConfigError, match=r"saturate.npy is not there. Put into .*: CIFAR-10-C.tar or the folder"):
        made(root)


def test_the_archive_serves_without_unpacking(root: Path) -> None:
    want = made(root)
    with tarfile.open(root / "CIFAR-10-C.tar", "w") as archive:
        archive.add(root / "CIFAR-10-C", "CIFAR-10-C")
    for file in (root / "CIFAR-10-C").iterdir():
        file.unlink()
    data = made(root)
    assert data.samples.x.equal(want.samples.x)
    assert data.samples.y.equal(want.samples.y)
    with pytest.raises(ConfigError, match=r"CIFAR-10-C.tar does not contain CIFAR-10-C/snow.npy"):
        Small(["snow"], root=root).load()


def test_a_saved_partition_gives_the_same_clients(root: Path, tmp_path: Path) -> None:
    data = made(root)
    save_partition(data, tmp_path / "clients.safetensors")
    again = made(root, partition=SavedPartition(str(tmp_path / "clients.safetensors")))
    assert [data.train_indices(c).tolist() for c in range(5)] == [again.train_indices(c).tolist() for c in range(5)]


def _wrong_files(kind: str, folder: Path) -> None:
    if kind == "shape":
        np.save(folder / "fog.npy", np.zeros((5, 32, 32, 3), dtype=np.uint8))
    elif kind == "truncated":
        (folder / "fog.npy").write_bytes((folder / "fog.npy").read_bytes()[:-1])
    elif kind == "text":
        (folder / "fog.npy").write_text("not an array")
    else:
        np.save(folder / "labels.npy", np.full(5 * COUNT, 10))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("shape", r"fog.npy holds uint8 \(5, 32, 32, 3\) instead of uint8 \(200, 32, 32, 3\)"),
        ("truncated", "fog.npy is truncated"),
        ("text", "magic string"),
        ("labels", "labels.npy must hold 200 class numbers below 10"),
    ],
)
def test_wrong_files_are_reported_in_one_line(root: Path, kind: str, message: str) -> None:
    _wrong_files(kind, root / "CIFAR-10-C")
    with pytest.raises(ConfigError, match=f"^data: CIFAR-10-C cannot be read from .*{message}") as caught:
        made(root)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"corruptions": ["mist"]}, "corruptions: 'mist' is not allowed; use gaussian_noise | shot_noise"),
        ({"corruptions": []}, "corruptions: [] is not allowed"),
        ({"severity": 6}, "severity: 6 is not allowed"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CIFAR10C(**settings)  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)


def test_ten_clients_see_the_first_ten_corruptions() -> None:
    assert CIFAR10C(num_clients=10).corruptions[0::9] == ("gaussian_noise", "fog")
    assert len(CIFAR10C(num_clients=100).corruptions) == 15
