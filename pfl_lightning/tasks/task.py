"""The base class of tasks: a LightningModule with a loss, and the sums that its metrics are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.nets.net import Net
from pfl_lightning.tasks.head import capture_features, find_head, replace_module
from pfl_lightning.tasks.hooks import Hooks
from pfl_lightning.tasks.optimization import Optimization, read_optimizers
from pfl_lightning.tasks.training_log import TrainingLog

if TYPE_CHECKING:
    from pfl_lightning.data.federated import DataSpec

Batch = tuple[Tensor, Tensor]
Autocast = Callable[[], AbstractContextManager[object]]
OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]


class Task(LightningModule):
    """The model of one client and how it learns. Subclass it for a new kind of problem.

    The loop calls `build` once, then for every client `training_step`, `configure_optimizers` (fresh for each training)
    and `test_step`. Metrics stay sums until the very end, so the mean over clients and the pooled value are both right.
    """

    sums: tuple[str, ...]
    """Names of the values that `test_step` adds up."""
    better: Mapping[str, str]
    """Metric names, the main one first, and whether `higher` or `lower` is better."""
    learns: str | None = None
    """The targets that the task needs: `classes` or `numbers`. None: any."""
    unpooled: frozenset[str] = frozenset()
    """Metrics computed per client only."""
    net: nn.Module
    net_name = "net"
    """The name of the net among the submodules of the task."""
    head_path: str | None = None
    """The path of the head that the user gave, in the task or in its net."""
    gradient_clip: float | None = None
    """The largest norm of the gradient at a step of the optimizer. None: no limit."""
    batch_idx = 0
    """The number of the present training batch within its epoch, for tasks with active hooks."""
    outputs: Mapping[str, Any] = MappingProxyType({})
    """The results of the latest `training_step`, for `on_train_batch_end`."""

    def build(self, spec: DataSpec) -> None:
        """Make the layers, now that the data is known. Called with the random state of the run's seed."""

    def try_out(self, batch: Batch, autocast: Autocast) -> None:
        """Called once with a few samples, on the device and before the first round. Random state and model return."""

    def training_step(self, batch: Batch, batch_idx: int = 0) -> Tensor:
        """The loss of a batch, mean over its samples."""
        raise NotImplementedError(f"{type(self).__name__} needs a training_step(batch, batch_idx)")

    def test_step(self, batch: Batch, batch_idx: int = 0) -> Tensor:
        """The amounts that the batch adds to `sums`: a float tensor with one entry per name."""
        raise NotImplementedError(f"{type(self).__name__} needs a test_step(batch, batch_idx)")

    def test_sums(self, batches: Iterable[Batch], autocast: Autocast) -> Tensor:
        """The sums over all test batches of one client, float64 [sums]."""
        total = torch.zeros(len(self.sums), dtype=torch.float64, device=self.device)
        for index, batch in enumerate(batches):
            with autocast():
                total += self.test_step(batch, index)
        return total

    def sample_sums(self, batch: Batch) -> Tensor:
        """The amounts that each sample adds to `sums`, float64 [samples, sums].

        Optional. With it the samples of many clients share a batch when all of them are tested with one model.
        """
        raise NotImplementedError(f"{type(self).__name__} has no sample_sums(batch)")

    @property
    def has_sample_sums(self) -> bool:
        """Whether `sample_sums` belongs to the task's own test: no subclass has changed the test without it."""
        return self._newest("sample_sums", "test_step", "test_sums")

    def sample_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The training loss of each sample, [samples], from the outputs of `net`. Their mean is the training loss.

        Optional. With it `loop.clients_per_step` computes the losses of several clients at once.
        """
        raise NotImplementedError(f"{type(self).__name__} has no sample_losses(outputs, targets)")

    @property
    def has_sample_losses(self) -> bool:
        """Whether `sample_losses` belongs to the task's own training: no subclass has changed that without it."""
        return self._newest("sample_losses", "training_step")

    def _newest(self, method: str, *others: str) -> bool:
        """Whether a subclass defines the method, and none below it has changed one of the others."""
        kinds = type(self).__mro__
        owner, *owners = (next(kind for kind in kinds if name in vars(kind)) for name in (method, *others))
        return owner is not Task and all(issubclass(owner, kind) for kind in owners)

    def metrics(self, sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Turn sums (arrays with one entry per client, or per pool of clients) into the metrics named in `better`."""
        raise NotImplementedError(f"{type(self).__name__} needs metrics(sums)")

    def optimization(self) -> Optimization:
        """A fresh optimizer and its schedulers."""
        made = self.configure_optimizers()
        return Optimization(made) if isinstance(made, Optimizer) else read_optimizers(made, type(self).__name__)

    @cached_property
    def hooks(self) -> Hooks:
        """The hooks of Lightning that the task overrides."""
        return Hooks(self)

    @cached_property
    def trained(self) -> TrainingLog:
        """The values that the present client logs in its training."""
        return TrainingLog(type(self).__name__)

    @cached_property
    def head_name(self) -> str | None:
        """The path of the head below the task. None: no layer looks like a head."""
        return find_head(self, self.head_path, self.net_name)

    @property
    def shown_head(self) -> str | None:
        """The path of the head below the net, for people."""
        return self.head_name and self.head_name.removeprefix(f"{self.net_name}.")

    @property
    def head(self) -> nn.Module:
        """The layer that turns features into outputs."""
        if self.head_name is None:
            raise ConfigError("task.head: there is no layer named head, classifier or fc, and no linear one; name it")
        return self.get_submodule(self.head_name)

    def replace_head(self, head: nn.Module) -> None:
        """Put another layer in the place of the head."""
        assert self.head_name is not None, "there is a head"
        replace_module(self, self.head_name, head)

    def features(self, x: Tensor) -> Tensor:
        """The features of a batch: the input of the head."""
        net = getattr(self, "net", None)
        if isinstance(net, Net) and self.head is net.head:
            features: Tensor = net.body(x)
            return features
        return capture_features(self, self.head, x)


class TaskLoss(nn.Module):
    """The loss of a task as the forward pass of a module, which `torch.func.functional_call` can call."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task

    @override
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.task.training_step((x, y))
