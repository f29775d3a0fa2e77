"""Batched versions of torchvision's usual random transforms.

torchvision draws one crop, flip or angle for a whole batch. These versions draw one for each sample, with the same
distribution and the same pixels as torchvision gives for a single image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import grid_sample, pad

from pfl_lightning.data.partitions.partition import Floats

Batched = Callable[[Tensor, Floats], Tensor]
"""Changes contiguous images [B, H, W, C] by two numbers in [0, 1) for each. # [B, 2]"""


def batched_version(transform: Any) -> Batched | None:
    """The batched version of a torchvision transform, or None if there is none for its kind or its options."""
    from torchvision.transforms import v2

    if type(transform) is v2.RandomHorizontalFlip:
        return lambda x, u: _flip(x, u, transform.p, 2)
    if type(transform) is v2.RandomVerticalFlip:
        return lambda x, u: _flip(x, u, transform.p, 1)
    if type(transform) is v2.RandomCrop and _is_plain_crop(transform):
        around = (0, 0, *(transform.padding or (0, 0, 0, 0)))  # channels, left and right, top and bottom
        return lambda x, u: _crop(pad(x, around, value=transform.fill), u, transform.size)
    if type(transform) is v2.RandomRotation and _is_plain_rotation(transform):
        return lambda x, u: _rotate(x, u, transform.degrees, _word(transform.interpolation))
    return None


def _is_plain_crop(transform: Any) -> bool:
    number = isinstance(transform.fill, int | float)
    return number and transform.padding_mode == "constant" and not transform.pad_if_needed


def _is_plain_rotation(transform: Any) -> bool:
    usual = transform.center is None and not transform.expand and transform.fill in (0, None)
    return usual and _word(transform.interpolation) in ("nearest", "bilinear")


def _word(interpolation: Any) -> str:
    """The name of an interpolation, which torchvision gives as a word or as an enumeration."""
    return str(getattr(interpolation, "value", interpolation))


def _flip(x: Tensor, u: Floats, p: float, axis: int) -> Tensor:
    # choosing rows of both versions is faster than torch.where with a broadcast mask
    chosen = torch.from_numpy(np.arange(len(x)) + len(x) * (u[:, 0] < p))
    return torch.cat([x, x.flip(axis)]).index_select(0, chosen.to(x.device))


def _crop(x: Tensor, u: Floats, size: tuple[int, int]) -> Tensor:
    """Cut a window of `size` (height, width) out of each image."""
    count, rows, columns, channels = x.shape
    height, width = size
    room = np.array([rows - height, columns - width]) + 1
    if room.min() < 1:
        raise ValueError(f"the crop {height}x{width} is larger than the padded image {rows}x{columns}")
    top, left = (u * room).astype(np.int64).T
    first_rows = np.arange(count) * rows + top
    starts = ((first_rows[:, None] + np.arange(height)) * columns + left[:, None]) * channels
    # every row of a window is one contiguous piece of memory
    pieces = x.flatten().unfold(0, width * channels, 1)
    return pieces.index_select(0, torch.from_numpy(starts.ravel()).to(x.device)).view(count, height, width, channels)


def _rotate(x: Tensor, u: Floats, degrees: list[float], mode: str) -> Tensor:
    """Rotate each image about its centre by an angle between the two `degrees`, counter-clockwise, filled with 0."""
    height, width = x.shape[1:3]
    angle = torch.from_numpy(np.deg2rad(degrees[0] + (degrees[1] - degrees[0]) * u[:, 0])).float().to(x.device)
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    down = (torch.arange(height, device=x.device) - (height - 1) / 2)[:, None]
    right = torch.arange(width, device=x.device) - (width - 1) / 2
    grid = torch.stack([(right * cos - down * sin) / (width / 2), (right * sin + down * cos) / (height / 2)], dim=-1)
    # grid_sample needs floats, for bytes too
    images = x.float().permute(0, 3, 1, 2)
    rotated = grid_sample(images, grid, mode=mode, padding_mode="zeros", align_corners=False).permute(0, 2, 3, 1)
    return (rotated if x.is_floating_point() else rotated.round().to(x.dtype)).contiguous()
