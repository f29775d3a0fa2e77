"""A task made of a net and an optimizer, both chosen in the config."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torchmetrics import Metric
from typing_extensions import override

from pfl_lightning.foundation.errors import ConfigError, require
from pfl_lightning.tasks.data_facts import call_with_facts, unwrap
from pfl_lightning.tasks.factories import NetFactory
from pfl_lightning.tasks.logged_sums import direction
from pfl_lightning.tasks.metric_sums import MetricSums, keep_local
from pfl_lightning.tasks.net_factory import make_net
from pfl_lightning.tasks.task import Autocast, Batch, OptimizerFactory, Task
from pfl_lightning.tasks.trial import reason
from pfl_lightning.tasks.weights import load_weights

if TYPE_CHECKING:
    from pfl_lightning.data.federated import DataSpec

    MetricFactory = Callable[..., Metric]
else:

    class MetricFactory(Protocol):
        """A class of torchmetrics. `num_classes` is filled in from the data."""

        def __call__(self, *, num_classes: int) -> Metric:
            """Make the metric."""


class NetTask(Task):
    """The common part of classification and regression: net, optimizer and further metrics.

    Args:
        net: any class or function that makes an `nn.Module`. Methods that need features look for its head.
        optimizer: the local optimizer. Its state starts fresh at each visit of a client.
        metrics: classes of torchmetrics, computed beside the task's own metrics.
        head: the path of the head in the net. By default the layer named head, classifier or fc, else the last linear
            layer.
        weights: initial weights: a state_dict file, or the name of torchvision's pretrained weights.
        gradient_clip: the largest norm of a gradient.
    """

    def __init__(
        self,
        net: NetFactory,
        optimizer: OptimizerFactory,
        metrics: Sequence[MetricFactory] | None = None,
        head: str | None = None,
        weights: str | None = None,
        gradient_clip: float | None = None,
    ) -> None:
        super().__init__()
        require(gradient_clip is None or gradient_clip > 0, "gradient_clip", gradient_clip, "a number above 0, or null")
        self.make_net, self.make_optimizer, self.make_metrics = net, optimizer, list(metrics or ())
        self.head_path, self.weights, self.gradient_clip = head, weights, gradient_clip
        self.more_metrics: list[MetricSums] = []

    @override
    def build(self, spec: DataSpec) -> None:
        self.net = make_net(self.make_net, spec)
        if self.weights is not None:
            head = self.head_name.removeprefix("net.") if self.head_name else None
            load_weights(self.net, self.weights, head, getattr(unwrap(self.make_net)[0], "__name__", ""))
        self.more_metrics = [_make_metric(make, spec) for make in self.make_metrics]
        names = [entry.name for entry in self.more_metrics]
        better = {entry.name: direction(entry.name, entry.higher_is_better) for entry in self.more_metrics}
        if len({*names, *type(self).better}) < len(names) + len(type(self).better):
            raise ConfigError(f"task.metrics: two metrics have the same name, of {', '.join((*self.better, *names))}")
        self.sums = (*type(self).sums, *(name for entry in self.more_metrics for name in entry.names))
        self.better = {**type(self).better, **better}
        self.unpooled = frozenset(entry.name for entry in self.more_metrics if not entry.pooled)

    @override
    def try_out(self, batch: Batch, autocast: Autocast) -> None:
        """Compute the further metrics once, so that one that does not fit the outputs is refused before the run."""
        if not self.more_metrics:
            return
        self.eval()
        with torch.no_grad(), autocast():
            outputs = self(batch[0]).float()
        for entry in self.more_metrics:
            name = type(entry.metric).__name__
            try:
                entry.try_out(outputs, batch[1])
            except ConfigError:
                raise
            except Exception as error:
                raise ConfigError(
                    f"task.metrics: {name} fails on a batch of {len(outputs)} samples: {reason(error)}"
                ) from error

    def observe(self, outputs: Tensor, targets: Tensor) -> None:
        """Show test outputs to the further metrics."""
        for entry in self.more_metrics:
            entry.metric.to(outputs.device).update(outputs, targets)

    @override
    def test_sums(self, batches: Iterable[Batch], autocast: Autocast) -> Tensor:
        for entry in self.more_metrics:
            entry.metric.reset()
        total, seen = torch.zeros(len(type(self).sums), dtype=torch.float64, device=self.device), 0
        for index, batch in enumerate(batches):
            seen += 1
            with autocast():
                total += self.test_step(batch, index)
        if not self.more_metrics:
            return total
        more = [entry.read() if seen else torch.zeros(len(entry.names)) for entry in self.more_metrics]
        return torch.cat([total, *(part.to(total) for part in more)])

    @property
    @override
    def has_sample_sums(self) -> bool:
        return not self.more_metrics and super().has_sample_sums

    def more_values(self, sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The further metrics, from arrays of sums."""
        return {entry.name: entry.values([sums[name] for name in entry.names]) for entry in self.more_metrics}

    @override
    def configure_optimizers(self) -> Optimizer:
        try:
            return self.make_optimizer(p for p in self.parameters() if p.requires_grad)
        except (ValueError, TypeError) as error:  # such as a negative learning rate
            raise ConfigError(f"task.optimizer: {error}") from error

    @override
    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.net(x)
        return outputs


def _make_metric(make: MetricFactory, spec: DataSpec) -> MetricSums:
    try:
        metric: Any = call_with_facts(make, spec, "task.metrics")
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"task.metrics: {unwrap(make)[0].__name__} cannot be made: {reason(error)}") from error
    keep_local(metric)
    return MetricSums(metric_name(type(metric).__name__), metric)


def metric_name(kind: str) -> str:
    """The name of a metric's columns: `MulticlassF1Score` becomes `f1_score`, `BinaryAUROC` becomes `auroc`."""
    short = re.sub(r"^(Multiclass|Multilabel|Binary)", "", kind)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", short).lower()
