"""Data of a federation: one data set, and the samples of each client as indices into it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pfl_lightning.data.checks import check_clients, check_inputs, check_parts, check_samples
from pfl_lightning.data.partitions.natural import owner_names
from pfl_lightning.data.partitions.partition import Parts
from pfl_lightning.data.samples import DataSpec, Kind, Samples, fits_on, values_sha256
from pfl_lightning.data.validation import draw_held_out, take_validation
from pfl_lightning.foundation.errors import require
from pfl_lightning.foundation.transfer import send

__all__ = ["DataSpec", "FederatedData", "Samples"]


class FederatedData:
    """A data set and its clients. Subclasses define where the samples come from (`load`) and who gets them (`draw`).

    All samples are in memory or in a mapped file and are found by index. There are no loader processes, so switching
    to another client costs nothing.

    Args:
        num_clients: number of clients.
        seed: seed of the partition, to keep the clients the same in runs with other seeds. The run's seed by default.
        validation_share: fraction of each client's training samples kept for validation.
        held_out_clients: fraction of the clients that never take part in training.
    """

    spec: DataSpec
    train_sizes: Tensor
    """Number of training samples of each client, int64. # [num_clients]"""
    validation_sizes: Tensor
    """Number of validation samples of each client, int64. # [num_clients]"""
    test_sizes: Tensor
    """Number of test samples of each client, int64. # [num_clients]"""
    samples: Samples
    held_out: Tensor
    """Clients that never take part in training, int64, in ascending order."""
    client_names: tuple[str, ...] = ()
    """Names of the clients, if the data set names them."""
    preprocess: Callable[[Tensor, Tensor, int | None], Tensor] | None = None
    """Turns gathered inputs into inputs of the net. It gets them, their indices and `augment_seed`."""
    augments = True
    """Whether `batch` may change training samples at random. If not, it gets no `augment_seed`."""
    warnings: tuple[str, ...] = ()
    """Lines about unusual but allowed data. Filled by `setup`."""

    def __init__(
        self, num_clients: int, seed: int | None = None, validation_share: float = 0.0, held_out_clients: float = 0.0
    ) -> None:
        require(num_clients >= 1, "num_clients", num_clients, "1 or more")
        require(seed is None or seed >= 0, "seed", seed, "0 or more, or null")
        fraction = "a number from 0 to below 1"
        require(0 <= validation_share < 1, "validation_share", validation_share, fraction)
        require(0 <= held_out_clients < 1, "held_out_clients", held_out_clients, fraction)
        self.num_clients = num_clients
        self.seed = seed
        self.validation_share = validation_share
        self.held_out_clients = held_out_clients

    @property
    def name(self) -> str:
        """Name of the data set in results and file names."""
        return type(self).__name__

    @property
    def kind(self) -> Kind:
        """`classes` if the targets are class numbers, `numbers` if they are numbers to predict. Known after `setup`."""
        return self.samples.kind

    def prepare(self) -> None:
        """Fetch or convert files missing on this machine. Optional: `setup` does it too."""

    def load(self) -> Samples:
        """Return the whole data set."""
        raise NotImplementedError

    def draw(self, samples: Samples, rng: np.random.Generator) -> Parts:
        """Deal the samples to the clients. `rng` is the only source of randomness."""
        raise NotImplementedError

    def setup(self, seed: int) -> None:
        """Load, deal and check the samples. The result depends on the settings, the files and the seed only."""
        require(seed >= 0, "seed", seed, "0 or more")
        own_seed = seed if self.seed is None else self.seed
        self.samples = self.load()
        self.validate_samples()
        self._dealt = self.draw(self.samples, np.random.default_rng(own_seed))
        self.warnings = tuple(self.validate_partition())
        split = take_validation(self._dealt, self.validation_share, own_seed)
        self.train_sizes = torch.from_numpy(split.train_sizes)
        self.validation_sizes = torch.from_numpy(split.validation_sizes)
        self.test_sizes = torch.from_numpy(self._dealt.test_sizes)
        self._indices = torch.from_numpy(split.indices)
        self._sizes = np.stack([split.train_sizes, split.validation_sizes, self._dealt.test_sizes], axis=1)
        self._starts = (self._sizes.cumsum() - self._sizes.ravel()).reshape(self._sizes.shape)
        self.held_out = torch.from_numpy(draw_held_out(self.num_clients, self.held_out_clients, own_seed))

    def validate_samples(self) -> None:
        """Check the samples of `load`. Raises a `ConfigError` of one line for the first mistake."""
        check_samples(self.name, self.samples, getattr(self, "spec", None))
        self.validate_inputs()

    def validate_inputs(self) -> None:
        """Check that the inputs fit `spec`."""
        if type(self).batch is FederatedData.batch:
            check_inputs(self.name, self.samples.x, self.spec)

    def validate_partition(self) -> list[str]:
        """Check the partition of `draw`. Raises a `ConfigError` of one line for the first mistake.

        Returns:
            Lines about unusual but allowed clients.
        """
        check_parts(self.name, self._dealt, self.num_clients, len(self.samples.y))
        if self.samples.owners is not None:
            self.client_names = owner_names(self._dealt, self.samples.owners.numpy(), self.samples.owner_names)
        return check_clients(self.name, self._dealt, self.client_names)

    def parts(self) -> Parts:
        """The partition as it was drawn. Validation samples count as training samples here."""
        return self._dealt

    def values_sha256(self) -> str:
        """Checksum of all inputs and targets. Reads all of them once, unless the data set knows its checksum."""
        return values_sha256(self.samples)

    def train_indices(self, client: int) -> Tensor:
        """The client's training samples as int64 indices, on the CPU where they are shuffled."""
        return self._indices_of(client, 0)

    def validation_indices(self, client: int) -> Tensor:
        """The client's validation samples as int64 indices. Empty unless `validation_share` is set."""
        return self._indices_of(client, 1)

    def test_indices(self, client: int) -> Tensor:
        """The client's test samples as int64 indices."""
        return self._indices_of(client, 2)

    def _indices_of(self, client: int, part: int) -> Tensor:
        return self._indices.narrow(0, int(self._starts[client, part]), int(self._sizes[client, part]))

    def batch(self, indices: Tensor, device: torch.device, augment_seed: int | None = None) -> tuple[Tensor, Tensor]:
        """The samples at `indices` on `device`, ready for the net.

        Args:
            indices: which samples, int64.
            device: where the batch is needed.
            augment_seed: seed of the random changes to training samples. Without it nothing is changed.

        Returns:
            Inputs and targets.
        """
        where = self.samples.y.device
        at = indices if indices.device == where else send(indices, where)
        x, y = _gather_rows(self.samples.x, at, device), _gather_rows(self.samples.y, at, device)
        return self.preprocess(x, indices, augment_seed) if self.preprocess else x, y

    @property
    def may_augment(self) -> bool:
        """Whether `batch` can change training samples at random: the class does not deny it and has code for it."""
        return self.augments and (self.preprocess is not None or type(self).batch is not FederatedData.batch)

    def place_indices(self, indices: Tensor) -> Tensor:
        """Indices of many batches where `batch` uses them, so that they travel to a GPU once.

        They stay on the CPU if random changes need them there, or if a subclass has its own `batch`.
        """
        own, where = type(self).batch is not FederatedData.batch, self.samples.y.device
        return indices if self.augments or own or indices.device == where else send(indices, where)

    def input_scale(self) -> tuple[Tensor, Tensor] | None:
        """The values that `batch` subtracts from raw inputs and multiplies them by, one for each channel or column.

        None if `batch` returns inputs as they are. A subclass whose `batch` changes inputs in another way cannot be
        exported with its normalisation.
        """
        return None

    def label_counts(self) -> Tensor:
        """Training samples of each class at each client. A single column without classes. # [clients, classes]"""
        if self.kind == "numbers":
            return self.train_sizes[:, None]
        row = torch.arange(3 * self.num_clients).repeat_interleave(torch.from_numpy(self._sizes).flatten())
        label = self.samples.y.cpu()[self._indices]
        classes = self.spec.num_classes
        counts = torch.bincount(row * classes + label, minlength=3 * self.num_clients * classes)
        return counts.view(self.num_clients, 3, classes)[:, 0]

    def to(self, device: torch.device | str, channels_last: bool = True) -> None:
        """Move all samples to a device once, so that batches are gathered there. Indices stay on the CPU.

        Samples that would fill more than half of a GPU's free memory stay where they are.

        Args:
            device: the device that trains.
            channels_last: memory order of image batches.
        """
        if fits_on(self.samples, torch.device(device)):
            self.samples = self.samples._replace(x=self.samples.x.to(device), y=self.samples.y.to(device))


def _gather_rows(tensor: Tensor, at: Tensor, device: torch.device) -> Tensor:
    """Rows of a tensor on `device`. They pass through pinned memory on their way to a GPU.

    The copy does not block, so the next batch is gathered while the GPU still works on the one before.
    """
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.index_select(0, at).to(device, non_blocking=True)
    pinned = torch.empty((len(at), *tensor.shape[1:]), dtype=tensor.dtype, pin_memory=True)
    return torch.index_select(tensor, 0, at, out=pinned).to(device, non_blocking=True)
