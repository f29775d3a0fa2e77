"""Arrays in .npz files, read piece by piece."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from pfl_lightning.data.own.source import rows_per_block
from pfl_lightning.foundation.errors import ConfigError


class Header(NamedTuple):
    """Shape and type of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool


class NpzFile:
    """A file that np.savez or np.savez_compressed wrote. Arrays of Python objects are refused.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with zipfile.ZipFile(path) as archive:
                names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
                self.headers = {name: self._header(archive, name) for name in names}
        except ConfigError:  # it is a ValueError
            raise
        except (OSError, zipfile.BadZipFile, ValueError) as error:
            raise ConfigError(f"source: {path} is not an .npz file: {' '.join(str(error).split())}") from error

    def length(self, name: str) -> int:
        """Number of rows of an array."""
        shape = self.headers[name].shape
        if not shape:
            raise ConfigError(f"data: {self.path}: the array {name} is a single number, not one row for each sample")
        return shape[0]

    def read(self, name: str) -> NDArray[Any]:
        """A whole array."""
        return np.concatenate(list(self.blocks(name, self.length(name) or 1)))

    def blocks(self, name: str, rows: int | None = None) -> Iterator[NDArray[Any]]:
        """An array in pieces of some rows, without ever holding all of it in memory."""
        shape, dtype, fortran = self.headers[name]
        row_bytes = dtype.itemsize * math.prod(shape[1:])
        rows = rows or rows_per_block(row_bytes)
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(f"{name}.npy") as file:
                _read_header(file)
                if fortran:  # columns come first, so rows cannot be read one after the other
                    rest = np.frombuffer(file.read(), dtype).reshape(shape[::-1]).T
                    yield from (rest[start : start + rows] for start in range(0, shape[0], rows))
                    return
                for start in range(0, max(1, shape[0]), rows):
                    count = min(rows, shape[0] - start)
                    piece = file.read(count * row_bytes)
                    yield np.frombuffer(piece, dtype).reshape(count, *shape[1:])
        except (OSError, EOFError, zlib.error, zipfile.BadZipFile, ValueError) as error:
            raise ConfigError(f"data: {self.path} is damaged: {' '.join(str(error).split())}") from error

    def _header(self, archive: zipfile.ZipFile, name: str) -> Header:
        with archive.open(f"{name}.npy") as file:
            header = _read_header(file)
        if header.dtype.hasobject:
            raise ConfigError(f"source: {self.path}: the array {name} holds Python objects; save numbers or text")
        return header


def _read_header(file: IO[bytes]) -> Header:
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read(file)
    return Header(shape, dtype, fortran)
