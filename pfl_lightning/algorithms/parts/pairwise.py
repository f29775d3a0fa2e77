"""Measures of two vectors, for tables of all pairs of clients."""

from __future__ import annotations

import torch
from torch import Tensor

from pfl_lightning.comm.exact_mean import CHUNK


def dot(a: Tensor, b: Tensor) -> Tensor:
    """⟨a, b⟩ in float64, by chunks: a float32 sum over millions of entries would lose half of its digits."""
    parts = zip(torch.split(a.reshape(-1), CHUNK), torch.split(b.reshape(-1), CHUNK), strict=True)
    return torch.stack([(x.double() * y.double()).sum() for x, y in parts]).sum()


def squared_distance(a: Tensor, b: Tensor) -> Tensor:
    """‖a − b‖² in float64, by chunks. The difference itself, since ‖a‖² + ‖b‖² − 2⟨a, b⟩ cancels."""
    parts = zip(torch.split(a.reshape(-1), CHUNK), torch.split(b.reshape(-1), CHUNK), strict=True)
    return torch.stack([(x.double() - y.double()).square().sum() for x, y in parts]).sum()
