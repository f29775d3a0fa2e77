"""Small image files in the layouts of official data sets."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def png(pixels: NDArray[np.uint8]) -> bytes:
    """An image file without loss. Readers look at the content, so the file may end in .jpg."""
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def plain(value: int, size: int = 8) -> bytes:
    """A colour image whose pixels are all (value, value + 1, value + 2)."""
    return png(np.broadcast_to(np.array([value, value + 1, value + 2], dtype=np.uint8), (size, size, 3)).copy())


def write_tree(root: Path, files: dict[str, bytes]) -> None:
    """Write files with their folders."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def write_zip(path: Path, files: dict[str, bytes]) -> None:
    """Write a zip archive."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
