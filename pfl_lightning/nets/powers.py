"""A polynomial as a net: a linear head on the powers of the input."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from typing_extensions import override

from pfl_lightning.foundation.errors import ConfigError, require
from pfl_lightning.nets.net import Net

if TYPE_CHECKING:
    from pfl_lightning.data.federated import DataSpec


class Powers(Net):
    """The polynomial Σ a_d x^d for d = 0 … order. The weights of the head are its coefficients, lowest power first.

    Args:
        spec: shape of the data, which must be one number.
        order: the highest power.
    """

    def __init__(self, spec: DataSpec, order: int = 3) -> None:
        require(order >= 0, "task.net.order", order, "0 or more")
        if spec.shape != (1,):
            raise ConfigError(
                f"task.net: Powers needs one number as input, but the data has shape {tuple(spec.shape)}; use MLP"
            )
        super().__init__(PowerFeatures(order), nn.Linear(order + 1, spec.num_classes, bias=False))


class PowerFeatures(nn.Module):
    """Computes the powers of a number: [N, 1] → [N, order + 1]."""

    def __init__(self, order: int) -> None:
        super().__init__()
        self.order = order

    @override
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x**power for power in range(self.order + 1)], 1)
