"""OrganAMNIST and OrganCMNIST of the MedMNIST collection, the medical sets of the FedOBP paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from pfl_lightning.data.download import fetch_file, file_md5
from pfl_lightning.data.federated import DataSpec, Samples
from pfl_lightning.data.fetch import Route
from pfl_lightning.data.file_format import RouteError
from pfl_lightning.data.images import ImageData
from pfl_lightning.foundation.errors import require

PARTS = ("train", "val", "test")


class Release(NamedTuple):
    """One published version of a data set's file."""

    md5: str
    record: int
    """Number of the Zenodo record that holds the file."""
    sizes: tuple[int, int, int]
    """Images for training, validation and test."""


class OrganMNIST(ImageData):
    """Grey 28x28 slices of abdominal CT scans, in 11 classes of organs.

    The official validation part counts as training data. Mean and deviation are measured on these training images.

    Args:
        version: version of MedMNIST. The present one is 3. The FedOBP paper used 2, which has a few more images.
        **kwargs: as for every image set.
    """

    file: ClassVar[str]
    """Name of the official file."""
    releases: ClassVar[dict[int, Release]]

    spec = DataSpec((1, 28, 28), 11)

    def __init__(self, version: Literal[2, 3] = 3, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        require(version in self.releases, "version", version, "2 or 3")
        self.version = version
        self.release = self.releases[version]
        train, validation, test = self.release.sizes
        self.sizes = (train + validation, test)

    @property
    @override
    def name(self) -> str:
        return f"{type(self).__name__}_v{self.version}"

    @override
    def by_hand(self) -> str:
        return (
            f"{self.file} of MedMNIST version {self.version} (zenodo.org/records/{self.release.record}), or "
            f"{super().by_hand()} from another machine"
        )

    @override
    def routes(self) -> list[Route]:
        return [
            Route(f"original file in {self.root}", lambda scratch: self._read(self.root / self.file), online=False),
            Route("zenodo.org", self._download, online=True),
        ]

    @override
    def load(self) -> Samples:
        samples = super().load()
        self.mean, self.std = measure(samples.x[: samples.num_train])
        return samples

    def _download(self, scratch: Path) -> Samples:
        address = f"https://zenodo.org/records/{self.release.record}/files/{self.file}?download=1"
        return self._read(fetch_file(address, self.release.md5, scratch, self.file))

    def _read(self, path: Path) -> Samples:
        if not path.is_file():
            raise RouteError(f"{path.name} is not there")
        found = file_md5(path)
        for version, release in self.releases.items():
            if found == release.md5 and version != self.version:
                raise RouteError(f"{path.name} is of version {version}; set data.version to {version}")
        if found != self.release.md5:
            raise RouteError(f"{path.name} is damaged: its MD5 differs")
        with np.load(path) as arrays:
            images = np.concatenate([arrays[f"{part}_images"] for part in PARTS])
            labels = np.concatenate([arrays[f"{part}_labels"][:, 0] for part in PARTS])
        return Samples(torch.from_numpy(images).unsqueeze(-1), torch.from_numpy(labels).long(), self.sizes[0])


class OrganAMNIST(OrganMNIST):
    """Axial slices: 58 830 images, or 58 850 in version 2. The FedOBP paper calls the set MEDMNISTA."""

    file = "organamnist.npz"
    releases: ClassVar[dict[int, Release]] = {
        2: Release("866b832ed4eeba67bfb9edee1d5544e6", 6496656, (34_581, 6_491, 17_778)),
        3: Release("68e3f8846a6bd62f0c9bf841c0d9eacc", 10519652, (34_561, 6_491, 17_778)),
    }


class OrganCMNIST(OrganMNIST):
    """Coronal slices: 23 583 images, or 23 660 in version 2. The FedOBP paper calls the set MEDMNISTC."""

    file = "organcmnist.npz"
    releases: ClassVar[dict[int, Release]] = {
        2: Release("0afa5834fb105f7705a7d93372119a21", 6496656, (13_000, 2_392, 8_268)),
        3: Release("b9ceb9546e10131b32923c5bbeaea2b1", 10519652, (12_975, 2_392, 8_216)),
    }


def measure(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and the standard deviation of each channel of byte images, for pixels in [0, 1]."""
    level = np.arange(256) / 255
    mean, std = [], []
    for channel in images.numpy().reshape(-1, images.shape[-1]).T:
        share = np.bincount(channel, minlength=256) / len(channel)
        mean.append(float(share @ level))
        std.append(float(np.sqrt(share @ (level - mean[-1]) ** 2)))
    return tuple(mean), tuple(std)
