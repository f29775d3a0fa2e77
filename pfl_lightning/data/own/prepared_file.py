"""The prepared file: all samples of a user's data set in one memory-mapped file.

It is a safetensors file. The inputs come first and start at a page of their own, so they can be written block by block
and mapped. Ranks on one machine share the pages.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import warnings
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pfl_lightning.data.samples import Samples

HEADER_BYTES = mmap.PAGESIZE
VERSION = "1"
TYPES = {"U8": np.uint8, "I64": np.int64, "F32": np.float32, "F64": np.float64}
VERIFIED_BYTES = 2**28
"""Files up to this size are checked byte by byte when they are opened. That takes a fraction of a second."""
READ_BYTES = 2**20


class Prepared(NamedTuple):
    """A data set ready to be indexed."""

    samples: Samples
    outputs: int
    """Number of classes, or of numbers to predict."""
    class_names: tuple[str, ...]
    mean: list[float]
    """Mean of each channel or column. Empty for tokens."""
    std: list[float]
    """Deviation of each channel or column."""
    vocabulary: int
    """Number of different tokens. 0 if the inputs are not tokens."""
    sha256: str
    """Checksum of all values."""


class PreparedWriter:
    """Writes a prepared file whose inputs arrive in blocks.

    Args:
        file: an empty file, open for reading and writing.
        num_first: number of rows of the first part, the training samples. They come before all others.
    """

    def __init__(self, file: BinaryIO, num_first: int) -> None:
        self._file, self._num_first = file, num_first
        self._written = [0, 0]
        self._row: tuple[tuple[int, ...], np.dtype[Any]] | None = None

    def add(self, x: NDArray[np.generic], second: bool) -> None:
        """Append rows to the first part or to the second."""
        x = np.ascontiguousarray(x)
        self._row = self._row or (x.shape[1:], x.dtype)
        assert self._row == (x.shape[1:], x.dtype), "all blocks have one shape and type"
        row = (self._num_first if second else 0) + self._written[second]
        self._file.seek(HEADER_BYTES + row * x.dtype.itemsize * math.prod(x.shape[1:]))
        self._file.write(x.data)
        self._written[second] += len(x)

    def finish(self, tensors: dict[str, NDArray[np.generic]], metadata: dict[str, str]) -> None:
        """Write the small tensors after the inputs, then the header."""
        assert self._row is not None
        shape, dtype = self._row
        count = sum(self._written)
        entries = {"x": _entry(dtype, (count, *shape), 0)}
        self._file.seek(HEADER_BYTES + entries["x"]["data_offsets"][1])
        for name, array in tensors.items():
            entries[name] = _entry(array.dtype, array.shape, self._file.tell() - HEADER_BYTES)
            self._file.write(np.ascontiguousarray(array).data)
        self._file.truncate()
        self._file.flush()
        metadata = {**metadata, "version": VERSION, "sha256": _digest(self._file)}
        header = json.dumps({"__metadata__": metadata, **entries}).encode()
        assert len(header) <= HEADER_BYTES - 8, "everything long is a tensor"
        self._file.seek(0)
        self._file.write((HEADER_BYTES - 8).to_bytes(8, "little") + header.ljust(HEADER_BYTES - 8))
        self._file.flush()
        os.fsync(self._file.fileno())


def read_prepared(path: Path) -> Prepared | None:
    """Open a prepared file, or None if it is missing, unfinished, damaged or of another version."""
    try:
        with path.open("rb") as file:
            return _read(file)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def text_tensor(texts: tuple[str, ...]) -> NDArray[np.uint8]:
    """Texts as bytes, since a safetensors file holds numbers only."""
    return np.frombuffer(json.dumps(texts).encode(), dtype=np.uint8)


def _read(file: BinaryIO) -> Prepared | None:
    entries = json.loads(file.read(HEADER_BYTES)[8:])
    metadata = entries.pop("__metadata__")
    size = HEADER_BYTES + max(entry["data_offsets"][1] for entry in entries.values())
    if metadata["version"] != VERSION or os.fstat(file.fileno()).st_size != size:
        return None
    if size <= VERIFIED_BYTES and _digest(file) != metadata["sha256"]:
        return None
    small = {name: _small(file, entry) for name, entry in entries.items() if name != "x"}
    owners = torch.from_numpy(small["owners"]) if "owners" in small else None
    y, num_train = torch.from_numpy(small["y"]), int(metadata["num_train"])
    return Prepared(
        Samples(_map(file, entries["x"]), y, num_train, owners, _texts(small["owner_names"])),
        int(metadata["outputs"]),
        _texts(small["class_names"]),
        small["mean"].tolist(),
        small["std"].tolist(),
        int(metadata["vocabulary"]),
        metadata["sha256"],
    )


def _map(file: BinaryIO, entry: dict[str, Any]) -> torch.Tensor:
    # Read-only and shared: pages are neither copied nor counted as memory of this process, and can be dropped any time.
    x = np.memmap(file, TYPES[entry["dtype"]], "r", HEADER_BYTES, tuple(entry["shape"]))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(x)


def _small(file: BinaryIO, entry: dict[str, Any]) -> NDArray[Any]:
    start, end = entry["data_offsets"]
    file.seek(HEADER_BYTES + start)
    return np.frombuffer(bytearray(file.read(end - start)), TYPES[entry["dtype"]]).reshape(entry["shape"])


def _texts(array: NDArray[Any]) -> tuple[str, ...]:
    return tuple(json.loads(array.tobytes()))


def _entry(dtype: np.dtype[Any], shape: tuple[int, ...], start: int) -> dict[str, Any]:
    code = next(code for code, kind in TYPES.items() if dtype == kind)
    return {"dtype": code, "shape": list(shape), "data_offsets": [start, start + dtype.itemsize * math.prod(shape)]}


def _digest(file: BinaryIO) -> str:
    """Checksum of everything after the header."""
    digest = hashlib.sha256()
    file.seek(HEADER_BYTES)
    while piece := file.read(READ_BYTES):
        digest.update(piece)
    return digest.hexdigest()
