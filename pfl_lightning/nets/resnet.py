"""Residual nets with the ImageNet stem: ResNet-18, and the ResNet-8 and ResNet-10 of the FedPURIN paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn
from typing_extensions import override

from pfl_lightning.foundation.errors import require
from pfl_lightning.nets.net import Net, image_shape

if TYPE_CHECKING:
    from pfl_lightning.data.federated import DataSpec


class ResNet18(Net):
    """ResNet-18 as torchvision builds and initialises it, with random weights and a Linear(512, classes) head.

    Grey images are repeated to three channels, so that all data sets use the same body. It has 11 181 642 parameters
    for 10 classes.
    """

    def __init__(self, spec: DataSpec) -> None:
        from torchvision.models import resnet18  # slow to import and needed by this net only

        channels, _, _ = image_shape("ResNet18", spec)
        require(channels in (1, 3), "task.net", f"ResNet18 for {channels} channels", "images of 1 or 3 channels")
        built = resnet18(weights=None, num_classes=spec.num_classes)
        body = nn.Sequential()
        if channels == 1:
            body.add_module("rgb", RepeatGrey())
        _add_stem(body, built.conv1, built.bn1)
        for name in ("layer1", "layer2", "layer3", "layer4", "avgpool"):
            body.add_module(name, getattr(built, name))
        body.add_module("flatten", nn.Flatten())
        super().__init__(body, built.fc)


class ResNet8(Net):
    """Three residual blocks of widths 64, 128, 256. 1 235 274 parameters on CIFAR-10."""

    def __init__(self, spec: DataSpec) -> None:
        super().__init__(_body("ResNet8", spec, (64, 128, 256)), nn.Linear(256, spec.num_classes))


class ResNet10(Net):
    """Four residual blocks of widths 64, 128, 256, 512. 4 957 092 parameters on CIFAR-100."""

    def __init__(self, spec: DataSpec) -> None:
        super().__init__(_body("ResNet10", spec, (64, 128, 256, 512)), nn.Linear(512, spec.num_classes))


class RepeatGrey(nn.Module):
    """Repeats a single channel three times."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        return x.repeat(1, 3, 1, 1)


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut around them. The shortcut is a 1x1 convolution if the shape changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential()
        if stride != 1 or before != after:
            self.shortcut.add_module("conv", nn.Conv2d(before, after, 1, stride, bias=False))
            self.shortcut.add_module("bn", nn.BatchNorm2d(after))

    @override
    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += self.shortcut(x)
        result: Tensor = self.relu(out)
        return result


def _body(net: str, spec: DataSpec, widths: tuple[int, ...]) -> nn.Sequential:
    channels, _, _ = image_shape(net, spec)
    body = nn.Sequential()
    _add_stem(body, nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64))
    before = 64
    for stage, after in enumerate(widths, start=1):
        body.add_module(f"block{stage}", Block(before, after, stride=1 if stage == 1 else 2))
        before = after
    body.add_module("avgpool", nn.AdaptiveAvgPool2d(1))
    body.add_module("flatten", nn.Flatten())
    return body


def _add_stem(body: nn.Sequential, conv: nn.Module, bn: nn.Module) -> None:
    body.add_module("conv1", conv)
    body.add_module("bn1", bn)
    # Other implementations apply ReLU first. ReLU is monotonic and the pool pads with minus infinity, so the order
    # changes neither outputs nor gradients, not even in the last bit. After pooling ReLU has a quarter of the entries
    # to process.
    body.add_module("pool", nn.MaxPool2d(3, stride=2, padding=1))
    body.add_module("relu", nn.ReLU(inplace=True))
