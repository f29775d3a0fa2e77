"""Regression: mean squared error, tested by its root (RMSE) and itself (MSE)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import mse_loss
from torch.optim import Adam
from typing_extensions import override

from pfl_lightning.nets.lstm import LSTM
from pfl_lightning.nets.mlp import MLP
from pfl_lightning.tasks.net_task import NetTask
from pfl_lightning.tasks.task import Batch, NetFactory, OptimizerFactory


class Regression(NetTask):
    """Learn to predict numbers.

    Args:
        net: the model; any class with a body and a head.
        optimizer: the local optimizer; its state starts fresh at each visit of a client.
    """

    sums: ClassVar[tuple[str, ...]] = ("squares", "count")
    better: ClassVar[Mapping[str, str]] = {"rmse": "lower", "mse": "lower"}

    def __init__(
        self, net: NetFactory = lambda spec: MLP(spec), optimizer: OptimizerFactory = lambda p: Adam(p, lr=0.01)
    ) -> None:
        super().__init__(net, optimizer)

    @override
    def training_step(self, batch: Batch, batch_idx: int = 0) -> Tensor:
        x, y = batch
        return mse_loss(self(x), y)

    @override
    def test_step(self, batch: Batch, batch_idx: int = 0) -> Tensor:
        x, y = batch
        squares = (self(x).double() - y.double()).square().sum()
        return torch.stack([squares, squares.new_tensor(float(y.numel()))])

    @override
    def metrics(self, sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        mse = sums["squares"] / sums["count"]
        return {"rmse": np.sqrt(mse), "mse": mse}


class Forecasting(Regression):
    """Learn to predict what follows in a series from a window of what came before.

    Args:
        net: the model; any class with a body and a head.
        optimizer: the local optimizer; its state starts fresh at each visit of a client.
    """

    def __init__(
        self, net: NetFactory = lambda spec: LSTM(spec), optimizer: OptimizerFactory = lambda p: Adam(p, lr=0.01)
    ) -> None:
        super().__init__(net, optimizer)
