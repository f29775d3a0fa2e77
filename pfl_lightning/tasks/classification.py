"""Classification: cross-entropy, tested by accuracy and loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from typing_extensions import override

from pfl_lightning.foundation.errors import require
from pfl_lightning.nets.cnn import CNN
from pfl_lightning.tasks.factories import NetFactory
from pfl_lightning.tasks.net_task import MetricFactory, NetTask
from pfl_lightning.tasks.task import Batch, OptimizerFactory


class Classification(NetTask):
    """Learn to tell classes apart.

    Args:
        net: any class or function that makes an `nn.Module`. Methods that need features look for its head.
        optimizer: the local optimizer. Its state starts fresh at each visit of a client.
        label_smoothing: the part of the training target spread over all classes. Tests are not smoothed.
        metrics: classes of torchmetrics, computed beside accuracy and loss.
        head: the path of the head in the net. By default the layer named head, classifier or fc, else the last linear
            layer.
        weights: initial weights: a state_dict file, or the name of torchvision's pretrained weights.
        gradient_clip: the largest norm of a gradient.
    """

    learns = "classes"
    sums = ("correct", "loss", "count")
    better: Mapping[str, str] = {"acc": "higher", "loss": "lower"}

    def __init__(
        self,
        net: NetFactory = CNN,
        optimizer: OptimizerFactory = lambda p: SGD(p, lr=0.01),
        label_smoothing: float = 0.0,
        metrics: Sequence[MetricFactory] | None = None,
        head: str | None = None,
        weights: str | None = None,
        gradient_clip: float | None = None,
    ) -> None:
        super().__init__(net, optimizer, metrics, head, weights, gradient_clip)
        require(0 <= label_smoothing < 1, "label_smoothing", label_smoothing, "a number from 0 up to, not including, 1")
        self.label_smoothing = label_smoothing

    @override
    def training_step(self, batch: Batch, batch_idx: int = 0) -> Tensor:
        x, y = batch
        return cross_entropy(self.net(x), y, label_smoothing=self.label_smoothing)

    @override
    def sample_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets, reduction="none", label_smoothing=self.label_smoothing)

    @override
    def test_step(self, batch: Batch, batch_idx: int = 0) -> Tensor:
        x, y = batch
        logits = self.net(x).float()
        if self.more_metrics:
            self.observe(logits, y)
        return self.sums_of(logits, y)

    @override
    def sample_sums(self, batch: Batch) -> Tensor:
        x, y = batch
        logits = self.net(x).float()
        loss = cross_entropy(logits, y, reduction="none").double()
        return torch.stack([(logits.argmax(1) == y).double(), loss, torch.ones_like(loss)], 1)

    def sums_of(self, logits: Tensor, y: Tensor) -> Tensor:
        """The amounts that these logits [N, C] add to each of `sums`. Log-probabilities are logits too."""
        correct = (logits.argmax(1) == y).sum()
        loss = cross_entropy(logits, y, reduction="sum")
        count = torch.full((), float(len(y)), dtype=torch.float64, device=loss.device)
        return torch.stack([correct.double(), loss.double(), count])

    @override
    def metrics(self, sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        own = {"acc": sums["correct"] / sums["count"], "loss": sums["loss"] / sums["count"]}
        return own | self.more_values(sums) if self.more_metrics else own
