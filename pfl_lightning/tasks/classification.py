"""Classification: cross-entropy, tested by accuracy and loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from typing_extensions import override

from pfl_lightning.nets.cnn import CNN
from pfl_lightning.tasks.net_task import NetTask
from pfl_lightning.tasks.task import Batch, NetFactory, OptimizerFactory


class Classification(NetTask):
    """Learn to tell classes apart.

    Args:
        net: the model; any class with a body and a head.
        optimizer: the local optimizer; its state starts fresh at each visit of a client.
    """

    sums: ClassVar[tuple[str, ...]] = ("correct", "loss", "count")
    better: ClassVar[Mapping[str, str]] = {"acc": "higher", "loss": "lower"}

    def __init__(
        self, net: NetFactory = lambda spec: CNN(spec), optimizer: OptimizerFactory = lambda p: SGD(p, lr=0.01)
    ) -> None:
        super().__init__(net, optimizer)

    @override
    def training_step(self, batch: Batch, batch_idx: int = 0) -> Tensor:
        x, y = batch
        return cross_entropy(self(x), y)

    @override
    def test_step(self, batch: Batch, batch_idx: int = 0) -> Tensor:
        x, y = batch
        return self.sums_of(self(x).float(), y)

    def sums_of(self, logits: Tensor, y: Tensor) -> Tensor:
        """What these logits [N, C] add to each of `sums`; log-probabilities are logits too."""
        correct = (logits.argmax(1) == y).sum()
        loss = cross_entropy(logits, y, reduction="sum")
        return torch.stack(
            [correct.double(), loss.double(), torch.tensor(float(len(y)), dtype=torch.float64, device=loss.device)]
        )

    @override
    def metrics(self, sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"acc": sums["correct"] / sums["count"], "loss": sums["loss"] / sums["count"]}
