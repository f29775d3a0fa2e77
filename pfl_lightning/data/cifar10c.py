"""CIFAR-10-C: the test images of CIFAR-10 under corruptions, used by the FedSelect paper."""

from __future__ import annotations

import io
import math
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from pfl_lightning.data.federated import Samples
from pfl_lightning.data.file_format import RouteError
from pfl_lightning.data.images import ImageData
from pfl_lightning.data.partitions import Parts, SavedPartition
from pfl_lightning.data.sets import CIFAR10
from pfl_lightning.foundation.errors import ConfigError, require

FOLDER, ARCHIVE, ADDRESS = "CIFAR-10-C", "CIFAR-10-C.tar", "zenodo.org/records/2535967"
STANDARD = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
SEVERITIES = 5


class CIFAR10C(ImageData):
    """The 10 000 test images of CIFAR-10 under 19 corruptions. Clients differ by corruption as well as by label.

    The partition deals the 10 000 original images to the clients by label. Client i then sees all its images under
    corruption number i, counted modulo the number of corruptions. So no original image has two owners, and none is a
    training image in one corruption and a test image in another. There is no official split. Pixels are normalised
    with the statistics of CIFAR-10.

    Args:
        corruptions: names of the corruptions in the order of the clients. null takes the 15 standard ones, from
            gaussian_noise to jpeg_compression.
        severity: strength of the corruptions, from 1 (mild) to 5 (strong).
        **kwargs: as for every image set.
    """

    spec, mean, std = CIFAR10.spec, CIFAR10.mean, CIFAR10.std
    sizes = (0, 10_000)

    def __init__(self, corruptions: list[str] | None = None, severity: int = 5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        require(1 <= severity <= SEVERITIES, "severity", severity, f"a whole number from 1 to {SEVERITIES}")
        for name in corruptions or ():
            require(name in STANDARD + EXTRA, "corruptions", name, " | ".join(STANDARD + EXTRA))
        require(corruptions != [], "corruptions", corruptions, "one or more names, or null")
        self.severity = severity
        self.corruptions = tuple(corruptions or STANDARD)[: self.num_clients or None]

    @property
    @override
    def name(self) -> str:
        return f"{type(self).__name__}_severity{self.severity}"

    @override
    def by_hand(self) -> str:
        return f"{ARCHIVE} or the folder {FOLDER} with labels.npy and a file such as fog.npy for each corruption"

    @override
    def load(self) -> Samples:
        shape = (sum(self.sizes), 32, 32, 3)
        try:
            labels = torch.from_numpy(_read_labels(self.root, shape[0]))
            images = np.concatenate([_read_images(self.root, name, self.severity, shape) for name in self.corruptions])
        except (RouteError, OSError, ValueError, tarfile.TarError) as error:
            raise ConfigError(
                f"data: CIFAR-10-C cannot be read from {self.root}: {error}. Put into {self.root} (data.root or "
                f"PFL_DATA): {self.by_hand()} ({ADDRESS})"
            ) from error
        return Samples(torch.from_numpy(images), labels.repeat(len(self.corruptions)), 0)

    @override
    def draw(self, samples: Samples, rng: np.random.Generator) -> Parts:
        if isinstance(self.partition, SavedPartition):
            return super().draw(samples, rng)  # its indices name corrupted images already
        count = len(samples.y) // len(self.corruptions)
        parts = super().draw(samples._replace(x=samples.x[:count], y=samples.y[:count]), rng)
        clients = np.arange(self.num_clients).repeat(parts.train_sizes + parts.test_sizes)
        return parts._replace(indices=parts.indices + count * (clients % len(self.corruptions)))


def _read_labels(root: Path, count: int) -> NDArray[np.int64]:
    with _open(root, "labels.npy") as file:
        labels = np.load(io.BytesIO(file.read()))
    if labels.shape != (SEVERITIES * count,) or labels.dtype.kind not in "iu" or set(labels) - set(range(10)):
        raise RouteError(f"labels.npy must hold {SEVERITIES * count} class numbers below 10")
    first: NDArray[np.int64] = labels[:count].astype(np.int64)  # the order is the same in every severity
    return first


def _read_images(root: Path, corruption: str, severity: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Read the images of one corruption and severity, and nothing else of the file. # [N, 32, 32, 3]"""
    size, wanted = math.prod(shape), (SEVERITIES * shape[0], *shape[1:])
    with _open(root, f"{corruption}.npy") as file:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        found, fortran, dtype = read_header(file)
        if found != wanted or fortran or dtype != np.uint8:
            raise RouteError(f"{corruption}.npy holds {dtype} {found} instead of uint8 {wanted}")
        file.seek((severity - 1) * size, io.SEEK_CUR)
        content = bytearray(file.read(size))
    if len(content) < size:
        raise RouteError(f"{corruption}.npy is truncated")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


@contextmanager
def _open(root: Path, name: str) -> Iterator[IO[bytes]]:
    """Open a file of the folder, or of the archive without unpacking it."""
    if (path := root / FOLDER / name).is_file():
        with path.open("rb") as file:
            yield file
        return
    if not (root / ARCHIVE).is_file():
        raise RouteError(f"{name} is not there")
    with tarfile.open(root / ARCHIVE) as archive:
        place = f"{FOLDER}/{name}"
        if place not in archive.getnames():
            raise RouteError(f"{ARCHIVE} does not contain {place}")
        yield cast(IO[bytes], archive.extractfile(place))
