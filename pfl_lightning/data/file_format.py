"""Our file format: one safetensors file per data set. It loads fast, and many processes can share it."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from safetensors import SafetensorError, safe_open

from pfl_lightning.data.federated import Samples
from pfl_lightning.foundation.tensor_files import write_tensors


class RouteError(Exception):
    """A file, or a source of one, that does not work here. The message is one line."""


def content_sha256(samples: Samples) -> str:
    """Checksum of the images, the labels, the owners and the end of the training part."""
    digest = hashlib.sha256(str(samples.num_train).encode())
    for tensor in (samples.x, samples.y):
        digest.update(tensor.contiguous().numpy().data)
    if samples.owners is not None:
        digest.update(samples.owners.contiguous().numpy().data)
        digest.update(json.dumps(samples.owner_names).encode())
    return digest.hexdigest()


def read_samples(path: Path, sha256: str = "") -> Samples:
    """Read the file and check every byte, against the checksum inside and against `sha256` if it is known."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            owners = file.get_tensor("owners") if "owners" in file.keys() else None  # noqa: SIM118
            names = tuple(json.loads(metadata.get("owner_names", "[]")))
            num_train = int(metadata.get("num_train", -1))
            samples = Samples(file.get_tensor("images"), file.get_tensor("labels"), num_train, owners, names)
    except (OSError, SafetensorError, ValueError) as error:
        raise RouteError(f"cannot be read: {error}") from error
    found = content_sha256(samples)
    if found != metadata.get("sha256") or found != (sha256 or found):
        raise RouteError("damaged: the checksum differs")
    return samples


def write_samples(samples: Samples, path: Path, scratch: Path) -> None:
    """Write the file: images uint8 [N, H, W, C], labels int64 [N], owners int64 [N] if they are known.

    It appears at `path` complete or not at all.

    Args:
        samples: the data set.
        path: the finished file.
        scratch: a directory on the same file system, for the unfinished file.
    """
    unfinished = scratch / path.name
    metadata = {"num_train": str(samples.num_train), "sha256": content_sha256(samples)}
    tensors = {"images": samples.x, "labels": samples.y}
    if samples.owners is not None:
        tensors["owners"] = samples.owners
        metadata["owner_names"] = json.dumps(samples.owner_names)
    write_tensors(unfinished, tensors, metadata)
    os.replace(unfinished, path)
