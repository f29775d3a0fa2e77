"""Image files to bytes of one size."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from pfl_lightning.data.own.source import rows_per_block
from pfl_lightning.foundation.errors import ConfigError, require

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
EIGHT_BITS = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
GREY = ("1", "L", "LA")
MODES = {1: "L", 3: "RGB"}

Channels = Literal[1, 3]
Size = int | tuple[int, int]


@dataclass(frozen=True)
class ImageShape:
    """The shape that all images get."""

    size: tuple[int, int] | None
    """Height and width. Images keep their proportions: the longer side is cut at both ends. None if all images have one
    size already."""
    channels: Channels | None
    """1 for grey, 3 for colour, None for whatever the first image has."""
    refuse_colour: bool = False
    """Whether a colour image is a mistake, because grey was not asked for."""

    @classmethod
    def of(cls, size: Size | None, channels: Channels | None) -> ImageShape:
        """Check the settings of the user."""
        numbers = (size, size) if isinstance(size, int) else size
        require(numbers is None or min(numbers) >= 1, "size", size, "1 or more, [height, width], or null")
        require(channels in (None, *MODES), "channels", channels, "1 for grey, 3 for colour, or null")
        return cls((numbers[0], numbers[1]) if numbers else None, channels)

    def like(self, first: Image.Image) -> ImageShape:
        """The same shape, with as many channels as the first image has unless the user has chosen."""
        if self.channels is not None:
            return self
        grey = first.mode in GREY
        return replace(self, channels=1 if grey else 3, refuse_colour=grey)

    def convert(self, image: Image.Image) -> NDArray[np.uint8]:
        """The image as bytes. # [H, W, C]"""
        assert self.channels is not None
        if image.mode not in EIGHT_BITS:
            raise ValueError(f"its mode is {image.mode}; only 8 bits per channel are supported")
        if self.refuse_colour and image.mode not in GREY:
            raise ValueError("it is in colour and the first image is grey; set data.channels to 1 or 3")
        image = (ImageOps.exif_transpose(image) or image).convert(MODES[self.channels])
        if self.size and image.size != self.size[::-1]:
            image = ImageOps.fit(image, self.size[::-1], Image.Resampling.BILINEAR)
        return np.asarray(image, dtype=np.uint8).reshape(image.height, image.width, self.channels)


def read_images(paths: Sequence[Path], shape: ImageShape) -> Iterator[NDArray[np.uint8]]:
    """Blocks of images in the order of the paths. # [n, H, W, C]"""
    with _open(paths[0]) as image:
        shape = shape.like(image)
        first = shape.convert(image)
    # decoding releases Python's lock, so threads help
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        step = rows_per_block(first.nbytes)
        for start in range(0, len(paths), step):
            some = paths[start : start + step]
            images = list(pool.map(partial(_read, shape=shape), some))
            for path, image_bytes in zip(some, images, strict=True):
                check_same_shape(image_bytes, first, path)
            yield np.stack(images)


def _read(path: Path, shape: ImageShape) -> NDArray[np.uint8]:
    with _open(path) as image:
        return shape.convert(image)


@contextmanager
def _open(path: Path) -> Iterator[Image.Image]:
    """Open an image. A mistake becomes a `ConfigError` that names the file."""
    try:
        with Image.open(path) as image:
            yield image
    except Exception as error:  # a decoder may raise anything on a damaged file
        raise ConfigError(f"data: {path} cannot be read as an image: {' '.join(str(error).split())}") from error


def check_same_shape(image: NDArray[Any], first: NDArray[Any], place: object) -> None:
    """Refuse an image of another size than the first."""
    if image.shape != first.shape:
        raise ConfigError(
            f"data: {place} has {image.shape[0]}x{image.shape[1]} pixels, the first image has "
            f"{first.shape[0]}x{first.shape[1]}; set data.size to give all images one size"
        )
