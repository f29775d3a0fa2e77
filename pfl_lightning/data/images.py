"""Image classification sets: raw bytes in memory, normalised on the device."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from pfl_lightning.data.checks import check_images
from pfl_lightning.data.federated import FederatedData, Samples
from pfl_lightning.data.fetch import Recipe, Route, obtain
from pfl_lightning.data.image_batches import ImageBatches
from pfl_lightning.data.normalization import Normalization, check_normalization, mean_and_std
from pfl_lightning.data.partitions import Dirichlet, Partition, Parts, Population
from pfl_lightning.data.transforms import TransformOption, Transforms
from pfl_lightning.foundation.errors import require

DEFAULT_PARTITION = Dirichlet()


class ImageData(FederatedData):
    """Images of one size with one label each.

    A subclass defines the facts of its set (`spec`, `mean`, `std`, `sizes`, `sha256`) and its `routes`, or overrides
    `load`.

    Args:
        num_clients: number of clients.
        partition: the rule that deals the samples to the clients.
        test_share: fraction of each client's samples that it is tested on, if the partition does not deal test samples
            separately.
        root: directory of the data sets. By default the environment variable PFL_DATA, else "data".
        download: whether a missing data set may be fetched from the network.
        normalize: "standard" for zero mean and unit variance per channel, "unit" for scaling to [0, 1], or
            {mean: …, std: …} for pixels in [0, 1], with one number or one per channel.
        seed: seed of the partition. The run's seed by default.
        transforms: random changes to training images, for example [{RandomCrop: {size: 32, padding: 4}},
            RandomHorizontalFlip]. Names are classes of torchvision.transforms.v2. The word normalize may stand where
            images are normalised, which is at the end by default.
        validation_share: fraction of each client's training samples kept for validation.
        held_out_clients: fraction of the clients that never take part in training.
    """

    mean: tuple[float, ...]
    """Mean of each channel, for pixels in [0, 1]."""
    std: tuple[float, ...]
    """Deviation of each channel, for pixels in [0, 1]."""
    sizes: tuple[int, int]
    """Number of samples in the official training part and in the official test part."""
    preprocess: ImageBatches
    """Makes normalised float32 images [B, C, H, W]. `to` chooses their memory order."""
    sha256: str = ""
    """Checksum of the images and labels in our file format. Empty if it is unknown and the route's check must do."""

    def __init__(
        self,
        num_clients: int = 100,
        partition: Partition = DEFAULT_PARTITION,
        test_share: float = 0.25,
        root: str | Path | None = None,
        download: bool = True,
        normalize: Normalization = "standard",
        seed: int | None = None,
        transforms: list[TransformOption] | None = None,
        validation_share: float = 0.0,
        held_out_clients: float = 0.0,
    ) -> None:
        super().__init__(num_clients, seed, validation_share, held_out_clients)
        require(0 < test_share < 1, "test_share", test_share, "a number between 0 and 1")
        check_normalization(normalize)
        self.partition = partition
        self.test_share = test_share
        self.root = Path(root or os.environ.get("PFL_DATA") or "data").expanduser()
        self.download = download
        self.normalize = normalize
        self.transforms = transforms

    def routes(self) -> list[Route]:
        """Sources in order of preference."""
        return []

    def by_hand(self) -> str:
        """Files that a person can place in `root`, for the message when no route works."""
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
        owners = None if samples.owners is None else samples.owners.numpy()
        population = Population(
            samples.y.numpy(),
            samples.num_train,
            self.spec.num_classes,
            self.num_clients,
            self.test_share,
            owners,
            samples.owner_names,
        )
        return self.partition.draw(population, rng)

    @override
    def validate_inputs(self) -> None:
        check_images(self.name, self.samples.x, self.spec)

    @override
    def setup(self, seed: int) -> None:
        super().setup(seed)
        pixels = self.samples.x[0].numel() // len(self.mean)
        transforms = Transforms(self.transforms) if self.transforms else None
        self.augments = transforms is not None
        if transforms:
            transforms.check(self.samples.x[:1])
        self.preprocess = ImageBatches(*mean_and_std(self.normalize, (self.mean, self.std)), pixels, transforms)

    @override
    def input_scale(self) -> tuple[Tensor, Tensor]:
        return self.preprocess.scale_of_channels()

    @override
    def to(self, device: torch.device | str, channels_last: bool = True) -> None:
        super().to(device, channels_last)
        self.preprocess.to(device, channels_last)
