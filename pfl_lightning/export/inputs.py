"""Modules that turn raw inputs into the inputs of a net, as the data of a run does."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import override

from pfl_lightning.data.federated import FederatedData
from pfl_lightning.foundation.errors import ConfigError


class ScaledImages(nn.Module):
    """Bytes of images [N, H, W, C] to normalised images [N, C, H, W].

    Args:
        shift: subtracted from the bytes. # [C]
        scale: multiplied with the difference. # [C]
        channels_last: memory order of the result, which decides the last digits of convolutions.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, shift: Tensor, scale: Tensor, channels_last: bool = True) -> None:
        super().__init__()
        self.register_buffer("shift", shift.clone())
        self.register_buffer("scale", scale.clone())
        self.channels_last = channels_last

    @override
    def forward(self, x: Tensor) -> Tensor:
        images = ((x.float() - self.shift) * self.scale).permute(0, 3, 1, 2)
        return images if self.channels_last else images.contiguous()


class ScaledNumbers(nn.Module):
    """Numbers [N, ...] to normalised numbers.

    Args:
        shift: subtracted from the numbers. One value, or one for each column.
        scale: multiplied with the difference.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, shift: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("shift", shift.clone())
        self.register_buffer("scale", scale.clone())

    @override
    def forward(self, x: Tensor) -> Tensor:
        return (x - self.shift) * self.scale


@torch.no_grad()
def input_module(data: FederatedData, channels_last: bool = True) -> nn.Module:
    """The module that makes of raw inputs (rows of `data.samples.x`) the inputs that `data.batch` makes.

    Raises:
        ConfigError: `data.batch` does something else, in a data set of the user's own.
    """
    module: nn.Module = nn.Identity()
    if (scale := data.input_scale()) is not None:
        shift, factor = (part.cpu() for part in scale)
        images = data.samples.are_images
        module = ScaledImages(shift, factor, channels_last) if images else ScaledNumbers(shift, factor)
    few = torch.arange(min(4, len(data.samples.y)))
    wanted, _ = data.batch(few, torch.device("cpu"))
    made = module(data.samples.x[few.to(data.samples.x.device)].cpu())
    if made.shape != wanted.shape or not torch.equal(made, wanted):
        name = type(data).__name__
        raise ConfigError(f"data: {name}.batch changes inputs in its own way; describe it in {name}.input_scale")
    return module
