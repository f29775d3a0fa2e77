"""Regression: mean squared error, tested by its root (RMSE) and itself (MSE)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import mse_loss
from torch.optim import Adam
from typing_extensions import override

from pfl_lightning.nets.lstm import LSTM
from pfl_lightning.nets.mlp import MLP
from pfl_lightning.tasks.factories import NetFactory
from pfl_lightning.tasks.net_task import MetricFactory, NetTask
from pfl_lightning.tasks.task import Batch, OptimizerFactory


class Regression(NetTask):
    """Learn to predict numbers.

    Args:
        net: any class or function that makes an `nn.Module`. Methods that need features look for its head.
        optimizer: the local optimizer. Its state starts fresh at each visit of a client.
        metrics: classes of torchmetrics, computed beside RMSE and MSE.
        head: the path of the head in the net. By default the layer named head, classifier or fc, else the last linear
            layer.
        weights: initial weights: a state_dict file.
        gradient_clip: the largest norm of a gradient.
    """

    learns = "numbers"
    sums = ("squares", "count")
    better: Mapping[str, str] = {"rmse": "lower", "mse": "lower"}

    def __init__(
        self,
        net: NetFactory = MLP,
        optimizer: OptimizerFactory = lambda p: Adam(p, lr=0.01),
        metrics: Sequence[MetricFactory] | None = None,
        head: str | None = None,
        weights: str | None = None,
        gradient_clip: float | None = None,
    ) -> None:
        super().__init__(net, optimizer, metrics, head, weights, gradient_clip)

    @override
    def training_step(self, batch: Batch, batch_idx: int = 0) -> Tensor:
        x, y = batch
        return mse_loss(self.net(x), y)

    @override
    def sample_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return mse_loss(outputs, targets, reduction="none").reshape(len(outputs), -1).mean(1)

    @override
    def test_step(self, batch: Batch, batch_idx: int = 0) -> Tensor:
        x, y = batch
        outputs = self.net(x)
        self.observe(outputs, y)
        squares = (outputs.double() - y.double()).square().sum()
        return torch.stack([squares, squares.new_full((), float(y.numel()))])

    @override
    def sample_sums(self, batch: Batch) -> Tensor:
        x, y = batch
        squares = (self.net(x).double() - y.double()).square().flatten(1).sum(1)
        return torch.stack([squares, torch.full_like(squares, y[0].numel())], 1)

    @override
    def metrics(self, sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        mse = sums["squares"] / sums["count"]
        return {"rmse": np.sqrt(mse), "mse": mse, **self.more_values(sums)}


class Forecasting(Regression):
    """Learn to predict the next values of a series from a window of the values before.

    Args:
        net: any class or function that makes an `nn.Module`. Methods that need features look for its head.
        optimizer: the local optimizer. Its state starts fresh at each visit of a client.
        metrics: classes of torchmetrics, computed beside RMSE and MSE.
        head: the path of the head in the net. By default the layer named head, classifier or fc, else the last linear
            layer.
        weights: initial weights: a state_dict file.
        gradient_clip: the largest norm of a gradient.
    """

    def __init__(
        self,
        net: NetFactory = LSTM,
        optimizer: OptimizerFactory = lambda p: Adam(p, lr=0.01),
        metrics: Sequence[MetricFactory] | None = None,
        head: str | None = None,
        weights: str | None = None,
        gradient_clip: float | None = None,
    ) -> None:
        super().__init__(net, optimizer, metrics, head, weights, gradient_clip)
