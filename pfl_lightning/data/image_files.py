"""Image files in a folder or a zip archive, decoded into one array of bytes."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from pfl_lightning.data.fetch_progress import step_bar
from pfl_lightning.data.file_format import RouteError

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png")


class FileTree(NamedTuple):
    """The files below a folder or inside a zip archive."""

    files: dict[PurePosixPath, str]
    """Path of each file without the outer folders that all files share → name to read it by."""
    read: Callable[[str], bytes]
    """Returns the content of a file by that name."""

    def text(self, path: str) -> str:
        """Return the content of a text file."""
        return self.read(self.files[PurePosixPath(path)]).decode()

    def images(self) -> list[PurePosixPath]:
        """Return the paths of all image files, sorted."""
        return sorted(path for path in self.files if path.suffix.lower() in IMAGE_ENDINGS)


@contextmanager
def open_tree(root: Path, names: Sequence[str]) -> Iterator[FileTree]:
    """Open the first of the folders or zip archives `names` found in `root`, or raise a `RouteError`."""
    place = next((root / name for name in names if (root / name).exists()), None)
    if place is None:
        raise RouteError("not there")
    if place.is_dir():
        found = [Path(folder, name).relative_to(place) for folder, _, files in os.walk(place) for name in files]
        yield FileTree(_without_shared_folders(path.as_posix() for path in found), lambda name: _bytes(place / name))
        return
    try:
        with zipfile.ZipFile(place) as archive:
            members = (name for name in archive.namelist() if not name.endswith("/"))
            yield FileTree(_without_shared_folders(members), archive.read)
    except zipfile.BadZipFile as error:
        raise RouteError(f"{place.name} is damaged: {error}") from error


def decode_images(tree: FileTree, paths: Sequence[PurePosixPath], size: int, about: str) -> Tensor:
    """Decode images to RGB and resize those that do not have the wanted size already.

    Args:
        tree: the files.
        paths: paths of the images in `tree`.
        size: height and width of the result.
        about: name of the data set for the progress bar.

    Returns:
        Bytes [N, size, size, 3].
    """
    pixels = np.empty((len(paths), size, size, 3), dtype=np.uint8)

    def decode(item: tuple[int, PurePosixPath]) -> None:
        number, path = item
        pixels[number] = _decode(tree.read(tree.files[path]), path, size)

    with ThreadPoolExecutor() as pool:
        for _ in step_bar(pool.map(decode, enumerate(paths)), f"{about} decoding", len(paths)):
            pass
    return torch.from_numpy(pixels)


def _decode(content: bytes, path: PurePosixPath, size: int) -> NDArray[np.uint8]:
    try:
        with Image.open(io.BytesIO(content)) as image:
            colour = image.convert("RGB")
    except (OSError, ValueError, SyntaxError) as error:
        raise RouteError(f"{path} cannot be decoded: {error}") from error
    if colour.size != (size, size):
        colour = colour.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(colour)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RouteError(f"{path} cannot be read: {error.strerror}") from error


def _without_shared_folders(names: Iterable[str]) -> dict[PurePosixPath, str]:
    """Map each path without the folders that contain everything to its full name. Hidden files are left out."""
    paths = {PurePosixPath(name): name for name in names}
    shown = [path for path in paths if not any(part.startswith((".", "__MACOSX")) for part in path.parts)]
    shared = os.path.commonpath([path.parent for path in shown]) if shown else ""
    return {path.relative_to(shared): paths[path] for path in shown}
