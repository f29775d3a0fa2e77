"""The files that a checkpoint consists of: written once, verified by their checksum."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from pfl_lightning.atomic import replacing

PART_BYTES = 1 << 28
"""About what a file of client states has at most, since they are in memory together when it is written."""


class PartFile(NamedTuple):
    """A file of tensors that is never changed once it is there."""

    name: str
    sha256: str
    size: int
    clients: int
    """How many clients' states were written into it."""


def write_part(path: Path, tensors: Mapping[str, Tensor], clients: int = 0) -> PartFile:
    """Write a safetensors file and take its checksum; raises an `OSError` that says what is wrong."""
    with replacing(path) as aside:
        try:
            save_file(dict(tensors), aside)
        except SafetensorError as error:
            raise _os_error(error) from error
        with aside.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
    return PartFile(path.name, digest, size, clients)


def what_is_wrong(folder: Path, part: PartFile) -> str | None:
    """Why a part file cannot be used, or None."""
    try:
        with (folder / part.name).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != part.size:
                return f"{part.name} has {size:,} bytes in place of {part.size:,}"
            if hashlib.file_digest(file, "sha256").hexdigest() != part.sha256:
                return f"{part.name} was changed: its checksum differs"
    except FileNotFoundError:
        return f"{part.name} is missing"
    except OSError as error:
        return f"{part.name} cannot be read: {error.strerror}"
    return None


def _os_error(error: SafetensorError) -> OSError:
    """What the system said, which safetensors tells in words only."""
    code = re.search(r"code: (\d+)|os error (\d+)", str(error))
    number = int(code[1] or code[2]) if code else 0
    return OSError(number, os.strerror(number) if number else str(error))
