"""The small convolutional nets of the papers: two 5x5 convolutions, then linear layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from pfl_lightning.foundation.errors import require
from pfl_lightning.nets.net import Net, image_shape

if TYPE_CHECKING:
    from pfl_lightning.data.federated import DataSpec


class CNN(Net):
    """The four-layer CNN of the FedOBP paper: conv 32, conv 64, linear 512, head. 878 538 parameters on CIFAR-10."""

    def __init__(self, spec: DataSpec) -> None:
        body, features = _body("CNN", spec, widths=(32, 64), hidden=(512,))
        super().__init__(body, nn.Linear(features, spec.num_classes))


class LeNet(Net):
    """The CIFAR-10 net of the Learn2pFed paper: conv 6, conv 16, linear 120, linear 84, head. 62 006 parameters."""

    def __init__(self, spec: DataSpec) -> None:
        body, features = _body("LeNet", spec, widths=(6, 16), hidden=(120, 84))
        super().__init__(body, nn.Linear(features, spec.num_classes))


class SmallCNN(Net):
    """The Fashion-MNIST net of the Learn2pFed paper: conv 10, conv 20, head on the 500 flattened features.

    The paper prints 10.29 (thousand parameters) for the whole model and 5.28 without the head. This matches weights and
    biases together: 260 + 5 020 in the convolutions and 5 010 in the head. The 500 features are 20 maps of 5x5. Images
    of 28x28 give such maps only if the first convolution is padded by 2.

    Args:
        spec: shape and classes of the data.
        padding: width of the border of zeros in the first convolution. 0 gives 320 features on 28x28 images
            (8 490 parameters).
    """

    def __init__(self, spec: DataSpec, padding: int = 2) -> None:
        require(padding >= 0, "task.net.padding", padding, "0 or more")
        body, features = _body("SmallCNN", spec, widths=(10, 20), hidden=(), padding=padding)
        super().__init__(body, nn.Linear(features, spec.num_classes))


def _body(
    net: str, spec: DataSpec, widths: tuple[int, int], hidden: Sequence[int], padding: int = 0
) -> tuple[nn.Sequential, int]:
    """Return the layers before the head and the number of features that they compute."""
    channels, height, width = image_shape(net, spec, smallest=max(1, 16 - 2 * padding))
    body = nn.Sequential()
    for stage, (before, after) in enumerate(((channels, widths[0]), widths), start=1):
        pad = padding if stage == 1 else 0
        body.add_module(f"conv{stage}", nn.Conv2d(before, after, kernel_size=5, padding=pad))
        # The papers apply ReLU first. ReLU is monotonic, so the order changes neither outputs nor gradients, not even
        # in the last bit, and after pooling ReLU has a quarter of the entries to process.
        body.add_module(f"pool{stage}", nn.MaxPool2d(2))
        body.add_module(f"relu{stage}", nn.ReLU(inplace=True))
        height, width = (height + 2 * pad - 4) // 2, (width + 2 * pad - 4) // 2
    body.add_module("flatten", nn.Flatten())
    features = widths[1] * height * width
    for layer, size in enumerate(hidden, start=1):
        body.add_module(f"fc{layer}", nn.Linear(features, size))
        body.add_module(f"relu{layer + 2}", nn.ReLU(inplace=True))
        features = size
    return body, features
