"""Images in folders: one folder for each client, and in it one for each class."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import override

from pfl_lightning.data.own.image_files import ENDINGS, Channels, ImageShape, Size, read_images
from pfl_lightning.data.own.own_data import OwnData
from pfl_lightning.data.own.source import Block, Source, Survey, existing, file_identity, natural_order
from pfl_lightning.foundation.errors import ConfigError

PARTS = {"train": False, "test": True}


class ClientFolders(OwnData):
    """Images in folders client/class/image, or client/train/class/image and client/test/class/image.

    Args:
        source: the folder that holds one folder for each client.
        size: height and width of the images that the net sees, or one number for both. Needed if images differ in size.
        channels: 1 for grey, 3 for colour. By default as the first image.
        **kwargs: as for all data of your own.
    """

    def __init__(
        self, source: str | Path, size: Size | None = None, channels: Channels | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.shape = ImageShape.of(size, channels)

    @override
    def origin(self) -> str:
        return Path(self.source).name

    @override
    def open_source(self) -> Source:
        return FolderSource(existing(self.source, folder=True), self.shape)


class Picture(NamedTuple):
    """One image file."""

    path: Path
    client: str
    label: str
    is_test: bool


class FolderSource(Source):
    """Reads folders of images.

    Args:
        folder: the folder that holds one folder for each client.
        shape: the shape that all images get.
    """

    def __init__(self, folder: Path, shape: ImageShape) -> None:
        self.folder, self.shape = folder, shape
        clients = _folders(folder)
        if not clients:
            raise ConfigError(f"source: {folder} holds no folders; there must be one for each client")
        self.pictures = [picture for client in clients for picture in _pictures(client)]
        self.class_names = natural_order([picture.label for picture in self.pictures])

    @override
    def identity(self) -> Iterator[str]:
        yield f"{self.folder.resolve()} {self.shape}"
        for picture in self.pictures:
            yield file_identity(picture.path, self.folder)

    @override
    def survey(self) -> Survey:
        split = {picture.client: picture.path for picture in self.pictures if _part(picture, self.folder)}
        for picture in self.pictures:
            if split and picture.client not in split:
                raise ConfigError(
                    f"source: {next(iter(split))} has the folders train and test, {picture.client} has not; give "
                    "them to all clients or to none"
                )
        is_test = np.array([picture.is_test for picture in self.pictures]) if split else None
        if is_test is not None and not is_test.any():
            raise ConfigError(f"source: no client in {self.folder} has images in its folder test")
        return Survey(len(self.pictures), is_test, self.class_names)

    @override
    def blocks(self) -> Iterator[Block]:
        numbers = {name: number for number, name in enumerate(self.class_names)}
        start = 0
        for x in read_images([picture.path for picture in self.pictures], self.shape):
            some = self.pictures[start : start + len(x)]
            yield Block(x, np.array([numbers[p.label] for p in some]), [p.client for p in some])
            start += len(x)

    @override
    def place(self, row: int) -> str:
        return str(self.pictures[row].path)


def _pictures(client: Path) -> list[Picture]:
    """The images of one client."""
    inside = {folder.name: folder for folder in _folders(client)}
    if inside and set(inside) <= set(PARTS):
        found = [p for part, folder in inside.items() for p in _classes(folder, client.name, PARTS[part])]
    else:
        found = _classes(client, client.name, False)
    if not found:
        raise ConfigError(f"source: {client} holds no images; expected folders of classes with {', '.join(ENDINGS)}")
    return found


def _classes(folder: Path, client: str, is_test: bool) -> list[Picture]:
    if stray := _images(folder):
        raise ConfigError(f"source: {stray[0]} must lie in the folder of its class, such as {folder}/cat")
    return [Picture(path, client, label.name, is_test) for label in _folders(folder) for path in _check_flat(label)]


def _check_flat(label: Path) -> list[Path]:
    if deeper := _folders(label):
        raise ConfigError(f"source: {deeper[0]} is a folder in the folder of a class, where images are expected")
    return _images(label)


def _part(picture: Picture, folder: Path) -> bool:
    """Whether the client of a picture has folders for training and test."""
    return len(picture.path.relative_to(folder).parts) == 4


def _folders(folder: Path) -> list[Path]:
    return [path for path in _entries(folder) if path.is_dir()]


def _images(folder: Path) -> list[Path]:
    return [path for path in _entries(folder) if path.suffix.lower() in ENDINGS and path.is_file()]


def _entries(folder: Path) -> list[Path]:
    """The content of a folder, in alphabetical order. Names that begin with a dot are left out."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise ConfigError(f"source: cannot read {folder}: {error.strerror}") from error
