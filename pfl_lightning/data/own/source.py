"""The interface between the files of a user and the prepared file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pfl_lightning.foundation.errors import ConfigError

BLOCK_BYTES = 2**20
"""Upper bound on the inputs held in memory while files are read. At least one sample is."""


class Survey(NamedTuple):
    """Facts about the samples, known before their inputs are read."""

    size: int
    """Number of samples."""
    is_test: NDArray[np.bool_] | None = None
    """Whether each sample belongs to the official test part. None without an official split. # [size]"""
    class_names: Sequence[str] | None = None
    """Names of the classes if labels are numbers that refer to them."""


class Block(NamedTuple):
    """Some consecutive samples."""

    x: NDArray[np.generic]
    """Inputs: uint8 [n, H, W, C] images, float32 [n, ...] numbers or int64 [n, ...] tokens."""
    y: NDArray[np.generic]
    """Targets: class numbers (int64 [n]), class names (text [n]) or numbers to predict (float32 [n, K])."""
    owners: Sequence[str] | None = None
    """Name of the owner of each sample."""


class Source:
    """Samples in the files of a user. A subclass reads one form of files."""

    def identity(self) -> Iterator[str]:
        """Everything that decides about the samples: settings, and name, size and time of every file."""
        raise NotImplementedError

    def survey(self) -> Survey:
        """Count the samples and check whatever can be checked without reading their inputs."""
        raise NotImplementedError

    def blocks(self) -> Iterator[Block]:
        """All samples, in an order that depends on the files only."""
        raise NotImplementedError

    def place(self, row: int) -> str:
        """Where a sample comes from, for messages: a file, or a file and a line."""
        raise NotImplementedError


def file_identity(path: Path, base: Path | None = None) -> str:
    """Name, size and time of change of a file."""
    try:
        facts = path.stat()
    except OSError as error:
        raise ConfigError(f"source: cannot read {path}: {error.strerror}") from error
    return f"{path.relative_to(base) if base else path.resolve()} {facts.st_size} {facts.st_mtime_ns}"


def existing(source: str | Path, folder: bool | None = None) -> Path:
    """The path of a file or folder that exists, or a `ConfigError`."""
    path = Path(source).expanduser()
    if not path.exists():
        raise ConfigError(f"source: {path} does not exist")
    if folder is not None and path.is_dir() != folder:
        raise ConfigError(f"source: {path} is not a {'folder' if folder else 'file'}")
    return path


def rows_per_block(row_bytes: int) -> int:
    """How many samples of this size make up a block."""
    return max(1, BLOCK_BYTES // max(1, row_bytes))


def natural_order(names: Sequence[str]) -> list[str]:
    """Different names in ascending order. By value if all of them are whole numbers."""
    different = set(names)
    if all(name.isdecimal() for name in different):
        return sorted(different, key=lambda name: (int(name), name))
    return sorted(different)
