"""Writing safetensors files as a stream, under our own temporary name.

The library's own writer creates a temporary file with a random name, which a kill leaves behind, and gives it
permissions for the owner only. This writer needs no copy of the tensors and computes the checksum on the way.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from pfl_lightning.foundation.atomic_files import replacing

DTYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32",
    torch.int64: "I64", torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64",
}  # fmt: skip
"""The names of tensor types in a safetensors header."""
ALIGNMENT = 8
"""The data begins at a multiple of this many bytes, and wide types come first, so every tensor is aligned."""


class Written(NamedTuple):
    """The identity of a file."""

    sha256: str
    size: int


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Written:
    """Write a safetensors file that appears complete or not at all. Raises an `OSError`."""
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header = _header({name: tensors[name] for name in names}, metadata)
    digest, size = hashlib.sha256(header), len(header)
    with replacing(path) as file:
        file.write(header)
        for name in names:
            data = _bytes(tensors[name])
            file.write(data)
            digest.update(data)
            size += len(data)
    return Written(digest.hexdigest(), size)


def _header(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None) -> bytes:
    """The length of the description as 8 bytes, then the description as JSON, padded with spaces."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _bytes(tensor: Tensor) -> memoryview:
    """The values of a tensor in memory order, without a copy where it is contiguous and on the CPU."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
