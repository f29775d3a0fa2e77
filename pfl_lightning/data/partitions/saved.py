"""Partitions as files, so that several methods or programs can run on exactly the same clients."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from typing_extensions import override

from pfl_lightning.data.partitions.partition import Partition, Parts, Population
from pfl_lightning.foundation.errors import ConfigError, require
from pfl_lightning.foundation.tensor_files import write_tensors

if TYPE_CHECKING:
    from pfl_lightning.data.federated import FederatedData


def save_partition(data: FederatedData, path: str | Path) -> None:
    """Write the partition of a data set after its `setup`. `SavedPartition` reads the file."""
    targets = data.samples.y.cpu().numpy()
    metadata = {"data": data.name, "num_samples": str(len(targets)), "labels_sha256": _digest(targets)}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: torch.from_numpy(part) for name, part in data.parts()._asdict().items()}
    write_tensors(Path(path), tensors, metadata)


@dataclass(frozen=True)
class SavedPartition(Partition):
    """Reads a partition that `save_partition` wrote. Data set and number of clients must be the same."""

    path: str
    """File of the saved partition."""

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
        targets = population.labels if population.targets is None else population.targets
        if metadata.get("labels_sha256") != _digest(targets):
            about = f"{metadata.get('data', 'another data set')} with {metadata.get('num_samples', '?')} samples"
            raise ConfigError(f"path: {self.path} is of {about}, not of this data set; draw a new one")
        if population.num_clients not in (0, there := len(parts.train_sizes)):
            raise ConfigError(f"num_clients: {population.num_clients} clients asked for, {self.path} has {there}")
        _check_whole(parts, len(population.labels), self.path)
        return parts


def _check_whole(parts: Parts, samples: int, path: str) -> None:
    total = int(parts.train_sizes.sum() + parts.test_sizes.sum())
    in_range = len(parts.indices) == 0 or (parts.indices.min() >= 0 and parts.indices.max() < samples)
    if total != len(parts.indices) or not in_range or any(part.dtype != np.int64 for part in parts):
        raise ConfigError(f"path: {path} is damaged: its sizes and indices do not match; draw a new one")


def _digest(labels: NDArray[np.generic]) -> str:
    return hashlib.sha256(np.ascontiguousarray(labels).tobytes()).hexdigest()
