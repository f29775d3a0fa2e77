"""Raw bytes of images to batches for a net."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pfl_lightning.data.sample_random import SampleRandom
from pfl_lightning.data.transforms import Transforms


class ImageBatches:
    """Normalises images, and changes training images at random.

    Args:
        mean: mean of each channel, for pixels in [0, 1].
        std: deviation of each channel.
        pixels: number of pixels of an image.
        transforms: random changes to training images.
    """

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], pixels: int, transforms: Transforms | None = None
    ) -> None:
        # one value for each pixel and channel: broadcasting over the last axis of length 3 is ten times slower
        self._shift = torch.tensor(mean).mul(255).repeat(pixels)
        self._scale = torch.tensor(std).mul(255).reciprocal().repeat(pixels)
        self._channels = len(mean)
        self._transforms = transforms
        self.channels_last = True

    def __call__(self, raw: Tensor, indices: Tensor, augment_seed: int | None = None) -> Tensor:
        """Normalised float32 images [B, C, H, W] of raw bytes [B, H, W, C].

        Args:
            raw: the bytes.
            indices: index of each image in the data set.
            augment_seed: seed of the random changes. Without it nothing is changed.
        """
        if self._transforms is None or augment_seed is None:
            images = self._normalize(raw)
        else:
            numbers = SampleRandom(augment_seed, indices.cpu().numpy())
            images = self._transforms.after(self._normalize(self._transforms.before(raw, numbers)), numbers)
        images = images.permute(0, 3, 1, 2)
        return images if self.channels_last else images.contiguous()

    def to(self, device: torch.device | str, channels_last: bool) -> None:
        """Move the constants to a device and choose the memory order of batches."""
        self._shift, self._scale = self._shift.to(device), self._scale.to(device)
        self.channels_last = channels_last

    def scale_of_channels(self) -> tuple[Tensor, Tensor]:
        """The values subtracted from bytes, and the factors applied afterwards. # [C]"""
        return self._shift[: self._channels], self._scale[: self._channels]

    def _normalize(self, raw: Tensor) -> Tensor:
        """Float32 images in the same memory order. # [B, H, W, C]"""
        x = raw.float()
        x.view(len(x), -1).sub_(self._shift.to(x.device)).mul_(self._scale.to(x.device))
        return x
