"""Our file format: one safetensors file per data set, which loads in a moment and serves many processes at once."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from pfl_lightning.atomic import share
from pfl_lightning.data.federated import Samples


class RouteError(Exception):
    """Why a file or a way to get one does not work here, in one line."""


def content_sha256(samples: Samples) -> str:
    """Checksum of the images, the labels and where the training part ends."""
    digest = hashlib.sha256(str(samples.num_train).encode())
    for tensor in (samples.x, samples.y):
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def read_samples(path: Path, sha256: str = "") -> Samples:
    """Read the file and check every byte, against the checksum inside and against `sha256` where it is known."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            samples = Samples(file.get_tensor("images"), file.get_tensor("labels"), int(metadata.get("num_train", -1)))
    except (OSError, SafetensorError) as error:
        raise RouteError(f"cannot be read: {error}") from error
    found = content_sha256(samples)
    if found != metadata.get("sha256") or found != (sha256 or found):
        raise RouteError("damaged: the checksum differs")
    return samples


def write_samples(samples: Samples, path: Path, scratch: Path) -> None:
    """Write the file: images uint8 [N, H, W, C], labels int64 [N]. It appears at `path` complete or not at all.

    Args:
        samples: what to write.
        path: where it appears.
        scratch: a directory on the same file system, for the unfinished file.
    """
    unfinished = scratch / path.name
    metadata = {"num_train": str(samples.num_train), "sha256": content_sha256(samples)}
    save_file({"images": samples.x.contiguous(), "labels": samples.y.contiguous()}, unfinished, metadata)
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())
    share(unfinished)
    os.replace(unfinished, path)
