"""Data of the user's own: files of any usual form, prepared once and mapped into memory."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from pfl_lightning.data.federated import DataSpec, FederatedData, Samples
from pfl_lightning.data.image_batches import ImageBatches
from pfl_lightning.data.normalization import Normalization, check_normalization, mean_and_std
from pfl_lightning.data.own.prepare import prepare
from pfl_lightning.data.own.prepared_file import Prepared
from pfl_lightning.data.own.source import Source
from pfl_lightning.data.partitions import Natural, Partition, Parts, Population, SavedPartition
from pfl_lightning.data.transforms import TransformOption, Transforms
from pfl_lightning.foundation.errors import ConfigError, require


class OwnData(FederatedData):
    """Samples from files of the user's own. A subclass reads one form of files (`open_source`).

    The first run prepares the samples into one file below `root`, which later runs map into memory. A new file is
    prepared when the name, size or time of a source file changes.

    Args:
        num_clients: number of clients. By default every client that the data names.
        partition: the rule that deals the samples to the clients. By default clients are those that the data names.
        test_share: fraction of each client's samples that it is tested on, if the data has no test part of its own.
        num_classes: number of classes, if labels are numbers and the last classes may not occur in the data.
        normalize: "standard" for zero mean and unit variance (per channel of images, per column of tables), "unit" for
            images scaled to [0, 1] and other numbers as they are, or {mean: …, std: …}.
        transforms: random changes to training images, for example [{RandomCrop: {size: 32, padding: 4}},
            RandomHorizontalFlip]. Names are classes of torchvision.transforms.v2.
        root: directory of the prepared file. By default the environment variable PFL_DATA, else "data".
        seed: seed of the partition. The run's seed by default.
        validation_share: fraction of each client's training samples kept for validation.
        held_out_clients: fraction of the clients that never take part in training.
    """

    class_names: tuple[str, ...] = ()
    """Name of each class, if classes have names. Known after `setup`."""
    keep_prepared = True

    def __init__(
        self,
        num_clients: int | None = None,
        partition: Partition | None = None,
        test_share: float = 0.25,
        num_classes: int | None = None,
        normalize: Normalization = "standard",
        transforms: list[TransformOption] | None = None,
        root: str | Path | None = None,
        seed: int | None = None,
        validation_share: float = 0.0,
        held_out_clients: float = 0.0,
    ) -> None:
        super().__init__(1 if num_clients is None else num_clients, seed, validation_share, held_out_clients)
        require(0 < test_share < 1, "test_share", test_share, "a number between 0 and 1")
        require(num_classes is None or num_classes >= 1, "num_classes", num_classes, "1 or more, or null")
        check_normalization(normalize)
        self.partition = partition or Natural()
        if num_clients is None and not isinstance(self.partition, Natural | SavedPartition):
            raise ConfigError("num_clients: it is missing; the partition needs the number of clients")
        self.wanted_clients = num_clients or 0
        self.test_share, self.num_classes = test_share, num_classes
        self.normalize, self.transforms = normalize, transforms
        self.root = Path(root or os.environ.get("PFL_DATA") or "data").expanduser()

    def open_source(self) -> Source:
        """The reader of the user's files."""
        raise NotImplementedError

    def origin(self) -> str:
        """The file or folder that the data set is named after."""
        raise NotImplementedError

    @property
    @override
    def name(self) -> str:
        word = re.sub(r"[^\w.-]+", "_", self.origin()).strip("._")[:80]
        return f"{type(self).__name__}_{word}"

    @override
    def prepare(self) -> None:
        self.load()

    @override
    def load(self) -> Samples:
        prepared = prepare(self.open_source(), self.root, self.name, self.num_classes, self.keep_prepared)
        self._sha256, self.class_names = prepared.sha256, prepared.class_names
        shape = tuple(prepared.samples.x.shape[1:])
        if prepared.samples.are_images:
            shape = (shape[2], shape[0], shape[1])
        self.spec = DataSpec(shape, prepared.outputs, prepared.vocabulary)
        self._set_scale(prepared)
        return prepared.samples

    def _set_scale(self, prepared: Prepared) -> None:
        """Prepare normalisation and transforms."""
        x = prepared.samples.x
        mean, std = mean_and_std(self.normalize, (prepared.mean, prepared.std))
        transforms = Transforms(self.transforms) if self.transforms else None
        if prepared.samples.are_images:
            if transforms:
                transforms.check(x[:1])
            self._images: ImageBatches | None = ImageBatches(mean, std, x[0].numel() // len(mean), transforms)
        else:
            require(transforms is None, "transforms", self.transforms, "null: the inputs are not images")
            self._images = None
        self._shift, self._scale = torch.tensor(mean), torch.tensor(std).reciprocal()

    @override
    def values_sha256(self) -> str:
        return self._sha256

    @override
    def validate_samples(self) -> None:
        """The samples were checked when they were prepared."""

    @override
    def validate_partition(self) -> list[str]:
        notes = super().validate_partition()
        if self.kind == "classes" and not self.class_names and (least := int(self.samples.y.min())):
            notes.append(
                f"data: the smallest label is {least}, so no sample has class 0; class numbers start at 0, and labels "
                "that are names are numbered for you"
            )
        return notes

    @override
    def draw(self, samples: Samples, rng: np.random.Generator) -> Parts:
        if samples.owners is None and isinstance(self.partition, Natural):
            raise ConfigError("partition: the data does not name its clients; set partition and num_clients")
        owners = None if samples.owners is None else samples.owners.numpy()
        y, classes = samples.y.numpy(), samples.kind == "classes"
        population = Population(
            y if classes else np.zeros(len(y), dtype=np.int64),
            samples.num_train,
            self.spec.num_classes if classes else 1,
            self.wanted_clients,
            self.test_share,
            owners,
            samples.owner_names,
            None if classes else y,
        )
        parts = self.partition.draw(population, rng)
        self.num_clients = len(parts.train_sizes)
        return parts

    @override
    def batch(self, indices: Tensor, device: torch.device, augment_seed: int | None = None) -> tuple[Tensor, Tensor]:
        """Inputs ready for the net, normalised unless they are tokens, and their targets."""
        x, y = super().batch(indices, device)
        if self._images:
            return self._images(x, indices, augment_seed), y
        if x.is_floating_point() and self.normalize != "unit":
            x = x.sub_(self._shift.to(device)).mul_(self._scale.to(device))
        return x, y

    @override
    def input_scale(self) -> tuple[Tensor, Tensor] | None:
        if self._images:
            return self._images.scale_of_channels()
        scaled = self.samples.x.is_floating_point() and self.normalize != "unit"
        return (self._shift, self._scale) if scaled else None

    @override
    def to(self, device: torch.device | str, channels_last: bool = True) -> None:
        super().to(device, channels_last)
        if self._images:
            self._images.to(device, channels_last)
        self._shift, self._scale = self._shift.to(device), self._scale.to(device)
