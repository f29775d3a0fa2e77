"""Who has what: a whole data set in memory, and the samples of each client as indices into it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pfl_lightning.data.partitions.partition import Parts
from pfl_lightning.errors import require


class DataSpec(NamedTuple):
    """What a net needs to know to be built."""

    shape: tuple[int, ...]
    """Shape of one sample as the net sees it, e.g. (1, 28, 28)."""
    num_classes: int
    """Number of outputs: the classes, or the numbers to predict."""


class Samples(NamedTuple):
    """A whole data set in memory."""

    x: Tensor
    """Inputs; of images the raw bytes, uint8 [N, H, W, C]."""
    y: Tensor
    """Targets; classes as int64 [N]."""
    num_train: int
    """The first so many rows are the official training part; 0 when there is no official split."""


class FederatedData:
    """A data set and its clients. Subclasses say where the samples come from (`load`) and who gets them (`draw`).

    Everything is in memory and indexed, without loader processes, so that opening a client costs nothing.

    Args:
        num_clients: number of clients.
        seed: for the partition alone, to keep the clients the same over runs with other seeds; by default the run's.
    """

    spec: DataSpec
    train_sizes: Tensor
    """Training samples of each client, int64. # [num_clients]"""
    test_sizes: Tensor
    """Test samples of each client, int64. # [num_clients]"""
    samples: Samples

    def __init__(self, num_clients: int, seed: int | None = None) -> None:
        require(num_clients >= 1, "num_clients", num_clients, "1 or more")
        require(seed is None or seed >= 0, "seed", seed, "0 or more, or null")
        self.num_clients = num_clients
        self.seed = seed

    @property
    def name(self) -> str:
        """How the data set is called in results and file names."""
        return type(self).__name__

    def prepare(self) -> None:
        """Fetch what is missing on this machine. Good to call once before the ranks start; `setup` does it as well."""

    def load(self) -> Samples:
        """The whole data set."""
        raise NotImplementedError

    def draw(self, samples: Samples, rng: np.random.Generator) -> Parts:
        """Deal the samples to the clients, with no other randomness than `rng`."""
        raise NotImplementedError

    def setup(self, seed: int) -> None:
        """Load the samples and draw the partition, which depends on the settings and the seed only."""
        require(seed >= 0, "seed", seed, "0 or more")
        self.samples = self.load()
        parts = self.draw(self.samples, np.random.default_rng(seed if self.seed is None else self.seed))
        self.train_sizes = torch.from_numpy(parts.train_sizes)
        self.test_sizes = torch.from_numpy(parts.test_sizes)
        self._indices = torch.from_numpy(parts.indices)
        self._starts = (self.train_sizes + self.test_sizes).cumsum(0) - self.train_sizes - self.test_sizes

    def parts(self) -> Parts:
        """The partition that was drawn."""
        return Parts(self._indices.numpy(), self.train_sizes.numpy(), self.test_sizes.numpy())

    def train_indices(self, client: int) -> Tensor:
        """The client's training samples as int64 indices, on the CPU where they are shuffled."""
        return self._indices.narrow(0, int(self._starts[client]), int(self.train_sizes[client]))

    def test_indices(self, client: int) -> Tensor:
        """The client's test samples as int64 indices."""
        start = int(self._starts[client]) + int(self.train_sizes[client])
        return self._indices.narrow(0, start, int(self.test_sizes[client]))

    def batch(self, indices: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """The samples at `indices` on `device`, ready for the net: (inputs, targets)."""
        at = indices.to(self.samples.y.device)
        x, y = self.samples.x.index_select(0, at), self.samples.y.index_select(0, at)
        return x.to(device, non_blocking=True), y.to(device, non_blocking=True)

    def label_counts(self) -> Tensor:
        """Training samples of each class at each client, or of all where there are no classes. # [clients, classes]"""
        if self.samples.y.is_floating_point():
            return self.train_sizes[:, None]
        sizes = torch.stack([self.train_sizes, self.test_sizes], dim=1).flatten()
        row = torch.arange(2 * self.num_clients).repeat_interleave(sizes)
        label = self.samples.y.cpu()[self._indices]
        classes = self.spec.num_classes
        counts = torch.bincount(row * classes + label, minlength=2 * self.num_clients * classes)
        return counts.view(self.num_clients, 2, classes)[:, 0]

    def to(self, device: torch.device | str, channels_last: bool = True) -> None:
        """Move the samples to a device once, so that batches are gathered there. Indices stay on the CPU.

        Args:
            device: where they go.
            channels_last: of images, the memory order of batches.
        """
        self.samples = Samples(self.samples.x.to(device), self.samples.y.to(device), self.samples.num_train)
