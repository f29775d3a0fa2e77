"""Image classification sets: raw bytes in memory, normalised on the device."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from pfl_lightning.data.federated import FederatedData, Samples
from pfl_lightning.data.fetch import Recipe, Route, obtain
from pfl_lightning.data.partitions import Dirichlet, Partition, Parts, Population
from pfl_lightning.errors import require

DEFAULT_PARTITION = Dirichlet()


class ImageData(FederatedData):
    """Images of one size with one label each.

    A subclass states the facts of its set (`spec`, `mean`, `std`, `sizes`, `sha256`) and its `routes`, or overrides
    `load`.

    Args:
        num_clients: number of clients.
        partition: the rule that deals the samples to the clients.
        test_share: share of each client's samples that it is tested on, where the partition deals both at once.
        root: directory of the data sets; by default the environment variable PFL_DATA, else "data".
        download: whether a missing data set may be fetched from the network.
        normalize: "standard" for zero mean and unit variance per channel, "unit" for nothing but scaling to [0, 1].
        seed: for the partition alone; by default the run's seed.
    """

    mean: tuple[float, ...]
    """Per channel, of pixels in [0, 1]."""
    std: tuple[float, ...]
    sizes: tuple[int, int]
    """Samples of the official training and test part."""
    sha256: str = ""
    """Of the images and labels as we keep them; empty where it is not known and the route's own check must do."""

    def __init__(
        self,
        num_clients: int = 100,
        partition: Partition = DEFAULT_PARTITION,
        test_share: float = 0.25,
        root: str | Path | None = None,
        download: bool = True,
        normalize: Literal["standard", "unit"] = "standard",
        seed: int | None = None,
    ) -> None:
        super().__init__(num_clients, seed)
        self._channels_last = True
        require(0 < test_share < 1, "test_share", test_share, "a number between 0 and 1")
        require(normalize in ("standard", "unit"), "normalize", normalize, "standard or unit")
        self.partition = partition
        self.test_share = test_share
        self.root = Path(root or os.environ.get("PFL_DATA") or "data").expanduser()
        self.download = download
        self.normalize = normalize

    def routes(self) -> list[Route]:
        """Ways to get the set; the first that works is taken."""
        return []

    def by_hand(self) -> str:
        """Which files a person can place in `root`, for the message when no route works."""
        return f"{self.name}.safetensors"

    @override
    def prepare(self) -> None:
        self.load()

    @override
    def load(self) -> Samples:
        channels, height, width = self.spec.shape
        shape = (sum(self.sizes), height, width, channels)
        about = (shape, self.sizes[0], self.spec.num_classes, self.sha256)
        return obtain(Recipe(self.name, self.routes(), self.by_hand(), *about), self.root, self.download)

    @override
    def draw(self, samples: Samples, rng: np.random.Generator) -> Parts:
        labels = samples.y.numpy()
        population = Population(labels, samples.num_train, self.spec.num_classes, self.num_clients, self.test_share)
        return self.partition.draw(population, rng)

    @override
    def setup(self, seed: int) -> None:
        super().setup(seed)
        pixels = self.samples.x[0].numel() // len(self.mean)
        standard = self.normalize == "standard"
        # one value for each pixel and channel: broadcasting over the last axis of length 3 is ten times slower
        self._shift = torch.tensor(self.mean if standard else [0.0] * len(self.mean)).mul(255).repeat(pixels)
        self._scale = torch.tensor(self.std if standard else [1.0] * len(self.std)).mul(255).reciprocal().repeat(pixels)

    @override
    def batch(self, indices: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """Normalised float32 images [B, C, H, W], in channels-last memory order unless `to` said otherwise, and their
        labels.
        """
        raw, y = super().batch(indices, device)
        x = raw.float()
        x.view(len(x), -1).sub_(self._shift.to(device)).mul_(self._scale.to(device))
        images = x.permute(0, 3, 1, 2)
        return images if self._channels_last else images.contiguous(), y

    @override
    def to(self, device: torch.device | str, channels_last: bool = True) -> None:
        super().to(device, channels_last)
        self._channels_last = channels_last
        self._shift, self._scale = self._shift.to(device), self._scale.to(device)
