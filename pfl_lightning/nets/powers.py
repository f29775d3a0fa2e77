"""A polynomial: linear in the powers of its input."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from typing_extensions import override

from pfl_lightning.errors import ConfigError, require
from pfl_lightning.nets.net import Net

if TYPE_CHECKING:
    from pfl_lightning.data.federated import DataSpec


class Powers(Net):
    """Σ a_d x^d, d = 0 … order. The head's weights are the coefficients, the lowest first.

    Args:
        spec: what the data looks like: one number.
        order: the highest power.
    """

    def __init__(self, spec: DataSpec, order: int = 3) -> None:
        require(order >= 0, "task.net.order", order, "0 or more")
        if spec.shape != (1,):
            raise ConfigError(f"task.net: Powers needs one number as input, the data has shape {tuple(spec.shape)}")
        super().__init__(_Powers(order), nn.Linear(order + 1, spec.num_classes, bias=False))


class _Powers(nn.Module):
    def __init__(self, order: int) -> None:
        super().__init__()
        self.order = order

    @override
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x**power for power in range(self.order + 1)], 1)
