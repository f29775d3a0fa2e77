"""ResNet-9, a shallow residual net for small images, used by the pFedSOP paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn
from typing_extensions import override

from pfl_lightning.nets.net import Net, image_shape

if TYPE_CHECKING:
    from pfl_lightning.data.federated import DataSpec


class ResNet9(Net):
    """conv 64, conv 128, residual 128, conv 256, conv 512, residual 512, head. 6 573 130 parameters on CIFAR-10.

    The convolutions have no bias, because the BatchNorm after them would cancel it, and an entry without effect would
    still be sent and scored. The last pool covers the whole map (4x4 for 32x32 images), so larger images such as 64x64
    work as well.
    """

    def __init__(self, spec: DataSpec) -> None:
        channels, _, _ = image_shape("ResNet9", spec, smallest=8)
        body = nn.Sequential()
        body.add_module("conv1", _convolution(channels, 64))
        body.add_module("conv2", _convolution(64, 128, pool=True))
        body.add_module("res1", Residual(128))
        body.add_module("conv3", _convolution(128, 256, pool=True))
        body.add_module("conv4", _convolution(256, 512, pool=True))
        body.add_module("res2", Residual(512))
        body.add_module("pool", nn.AdaptiveMaxPool2d(1))
        body.add_module("flatten", nn.Flatten())
        super().__init__(body, nn.Linear(512, spec.num_classes))


class Residual(nn.Module):
    """Adds two convolutions to their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = _convolution(channels, channels)
        self.second = _convolution(channels, channels)

    @override
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(self.first(x)) + x
        return result


def _convolution(before: int, after: int, pool: bool = False) -> nn.Sequential:
    layers = nn.Sequential()
    layers.add_module("conv", nn.Conv2d(before, after, 3, padding=1, bias=False))
    layers.add_module("bn", nn.BatchNorm2d(after))
    if pool:  # before ReLU: the result is exactly the same, and ReLU has a quarter of the entries to process
        layers.add_module("pool", nn.MaxPool2d(2))
    layers.add_module("relu", nn.ReLU(inplace=True))
    return layers
