"""A multilayer perceptron for inputs of any shape."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import nn

from pfl_lightning.foundation.errors import require
from pfl_lightning.nets.net import Net

if TYPE_CHECKING:
    from pfl_lightning.data.federated import DataSpec


class MLP(Net):
    """Linear layers with ReLU between them.

    The default is the "2NN" of the FedAvg paper, with 199 210 parameters on MNIST.

    Args:
        spec: shape and classes of the data.
        hidden: sizes of the hidden layers. An empty list gives a linear model.
    """

    def __init__(self, spec: DataSpec, hidden: tuple[int, ...] = (200, 200)) -> None:
        require(all(size > 0 for size in hidden), "task.net.hidden", list(hidden), "sizes of at least 1")
        body = nn.Sequential()
        body.add_module("flatten", nn.Flatten())
        features = math.prod(spec.shape)
        for layer, size in enumerate(hidden, start=1):
            body.add_module(f"fc{layer}", nn.Linear(features, size))
            body.add_module(f"relu{layer}", nn.ReLU(inplace=True))
            features = size
        super().__init__(body, nn.Linear(features, spec.num_classes))
