"""A drawn partition as a file, to run several methods or programs on exactly the same clients."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from typing_extensions import override

from pfl_lightning.atomic import share
from pfl_lightning.data.partitions.partition import Partition, Parts, Population
from pfl_lightning.errors import ConfigError, require

if TYPE_CHECKING:
    from pfl_lightning.data.federated import FederatedData


def save_partition(data: FederatedData, path: str | Path) -> None:
    """Write who has what of a data set that is set up; `SavedPartition` reads it."""
    labels = data.samples.y.cpu().numpy()
    metadata = {"data": data.name, "num_samples": str(len(labels)), "labels_sha256": _digest(labels)}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    save_file(data.parts()._asdict(), path, metadata)
    share(Path(path))


@dataclass(frozen=True)
class SavedPartition(Partition):
    """The partition that `save_partition` wrote. It must be of the same data set and number of clients."""

    path: str
    """The file."""

    def __post_init__(self) -> None:
        require(self.path != "", "path", self.path, "the file of a saved partition")

    @override
    def draw(self, population: Population, rng: np.random.Generator) -> Parts:
        try:
            with safe_open(self.path, framework="numpy") as file:
                metadata = file.metadata() or {}
                parts = Parts(*(file.get_tensor(name) for name in Parts._fields))
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"path: {self.path} is not a saved partition ({error})") from error
        if metadata.get("labels_sha256") != _digest(population.labels):
            about = f"{metadata.get('data', 'another data set')} with {metadata.get('num_samples', '?')} samples"
            raise ConfigError(f"path: {self.path} is of {about}, not of this data set; draw a new one")
        if (there := len(parts.train_sizes)) != population.num_clients:
            raise ConfigError(f"num_clients: {population.num_clients} clients asked for, {self.path} has {there}")
        _check_whole(parts, len(population.labels), self.path)
        return parts


def _check_whole(parts: Parts, samples: int, path: str) -> None:
    total = int(parts.train_sizes.sum() + parts.test_sizes.sum())
    in_range = len(parts.indices) == 0 or (parts.indices.min() >= 0 and parts.indices.max() < samples)
    if total != len(parts.indices) or not in_range or any(part.dtype != np.int64 for part in parts):
        raise ConfigError(f"path: {path} is damaged: sizes and indices do not fit each other; draw a new one")


def _digest(labels: NDArray[np.generic]) -> str:
    return hashlib.sha256(np.ascontiguousarray(labels).tobytes()).hexdigest()
