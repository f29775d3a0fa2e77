"""The files of a checkpoint: written once, never changed, verified by their checksum."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from pfl_lightning.foundation.tensor_files import write_tensors

PART_BYTES = 1 << 28
"""Approximate upper bound on the size of a file of client states. They are in memory together while it is written."""
PART_NAME = re.compile(r"(\d{8,})(-server|-clients-\d+of\d+(-\d+)?)\.safetensors")


class PartFile(NamedTuple):
    """A file of a checkpoint."""

    name: str
    sha256: str
    size: int
    clients: int
    """Number of clients whose states were written into it."""

    @property
    def round(self) -> int:
        """The round in which it was written."""
        match = PART_NAME.fullmatch(self.name)
        assert match is not None, "a manifest with other names is refused"
        return int(match[1])


def write_part(path: Path, tensors: Mapping[str, Tensor], clients: int = 0) -> PartFile:
    """Write tensors into a file. Raises an `OSError`."""
    return PartFile(path.name, *write_tensors(path, tensors), clients)


def problem_with(folder: Path, part: PartFile) -> str | None:
    """Why a file cannot be used, or None."""
    try:
        with (folder / part.name).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != part.size:
                return f"{part.name} is damaged: it has {size:,} bytes instead of {part.size:,}"
            if hashlib.file_digest(file, "sha256").hexdigest() != part.sha256:
                return f"{part.name} is damaged: its checksum differs"
    except FileNotFoundError:
        return f"{part.name} is missing"
    except OSError as error:
        return f"{part.name} cannot be read: {error.strerror}"
    return None
