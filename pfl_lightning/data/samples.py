"""A data set as tensors, and the facts that a net needs to be built for it."""

from __future__ import annotations

import hashlib
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

Kind: TypeAlias = Literal["classes", "numbers"]
HASH_ROWS = 4096
GPU_FRACTION = 0.5
"""Fraction of a GPU's free memory that samples may take."""


class DataSpec(NamedTuple):
    """The facts that a net needs to be built."""

    shape: tuple[int, ...]
    """Shape of one sample as the net sees it, e.g. (1, 28, 28)."""
    num_classes: int
    """Number of outputs: the classes, or the numbers to predict."""
    vocabulary: int = 0
    """Number of different tokens. 0 if the inputs are not tokens."""


class Samples(NamedTuple):
    """A whole data set, in memory or mapped from a file."""

    x: Tensor
    """Inputs: bytes of images (uint8 [N, H, W, C]), numbers (float32 [N, ...]) or tokens (int64 [N, ...])."""
    y: Tensor
    """Targets: class numbers (int64 [N]) or numbers to predict (float32 [N, K])."""
    num_train: int
    """The first `num_train` rows are the official training part. 0 if there is no official split."""
    owners: Tensor | None = None
    """Number of the owner of each sample, for the partition `Natural`. # int64 [N]"""
    owner_names: tuple[str, ...] = ()
    """Name of each owner. May be empty."""

    @property
    def kind(self) -> Kind:
        """Whether the targets are class numbers or numbers to predict."""
        return "numbers" if self.y.is_floating_point() else "classes"

    @property
    def are_images(self) -> bool:
        """Whether the inputs are bytes of images."""
        return self.x.dtype == torch.uint8 and self.x.ndim == 4


def values_sha256(samples: Samples) -> str:
    """Checksum of all inputs and targets, computed in pieces so that a mapped file need not fit into memory."""
    digest = hashlib.sha256()
    for tensor in (samples.x, samples.y):
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        for start in range(0, len(tensor), HASH_ROWS):
            digest.update(tensor[start : start + HASH_ROWS].cpu().contiguous().numpy().data)
    return digest.hexdigest()


def fits_on(samples: Samples, device: torch.device) -> bool:
    """Whether a device has room for all samples and for training beside them."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return samples.x.nbytes + samples.y.nbytes <= free * GPU_FRACTION
