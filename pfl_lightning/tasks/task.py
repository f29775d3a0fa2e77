"""What is learned: a LightningModule with a net, a loss, and the sums its metrics are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from lightning import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from pfl_lightning.nets.net import Net

if TYPE_CHECKING:
    from pfl_lightning.data.federated import DataSpec

Batch = tuple[Tensor, Tensor]
NetFactory = Callable[["DataSpec"], Net]
OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]


class Task(LightningModule):
    """The model of one client and how it learns. Subclass it for a new kind of problem.

    The loop calls `build` once, then for every client `training_step`, `configure_optimizers` (fresh each visit) and
    `test_step`. Metrics stay sums until the very end, so that a mean over clients and a pooled value both come out
    right.
    """

    sums: ClassVar[tuple[str, ...]]
    """Names of what `test_step` adds up."""
    better: ClassVar[Mapping[str, str]]
    """Metric names, the main one first, and whether `higher` or `lower` is better."""
    net: Net

    def build(self, spec: DataSpec) -> None:
        """Make the layers, now that the data is known. Called with the random state of the run's seed."""

    def training_step(self, batch: Batch, batch_idx: int = 0) -> Tensor:
        """The loss of a batch, mean over its samples."""
        raise NotImplementedError(f"{type(self).__name__} needs a training_step(batch, batch_idx)")

    def test_step(self, batch: Batch, batch_idx: int = 0) -> Tensor:
        """What the batch adds to each of `sums`: a float tensor with one entry per name."""
        raise NotImplementedError(f"{type(self).__name__} needs a test_step(batch, batch_idx)")

    def metrics(self, sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Turn sums (arrays with one entry per client, or per pool of clients) into the metrics named in `better`."""
        raise NotImplementedError(f"{type(self).__name__} needs metrics(sums)")


class TaskLoss(nn.Module):
    """A task's loss as a module's forward, which is what `torch.func.functional_call` can call."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task

    @override
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.task.training_step((x, y))
