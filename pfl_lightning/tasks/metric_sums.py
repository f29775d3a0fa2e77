"""torchmetrics objects as sums: states that add up over batches, clients and ranks, computed at the very end."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection
from torchmetrics.utilities import dim_zero_sum

from pfl_lightning.foundation.errors import ConfigError

MOST_SUMS = 10_000
"""A metric with more numbers in its state is computed per client only."""


class MetricSums:
    """One torchmetrics object in the sums of a task.

    If all its states are added up over batches, so are the sums, and every average is exact. Any other metric, such as
    AUROC without thresholds, is computed for each client. It has a mean over clients but no pooled value. A metric that
    a client's samples do not define, such as a correlation of constants, is NaN. That is no sign of divergence.

    Args:
        name: the name of the metric's column.
        metric: the object that `test_step` updates.

    Attributes:
        names: the names of the sums.
        pooled: whether there is a pooled value.
    """

    def __init__(self, name: str, metric: Metric) -> None:
        self.name, self.metric = name, metric
        self.pooled = _adds_up(metric)
        states = {state: value for state, value in metric.metric_state.items() if isinstance(value, Tensor)}
        self._shapes = [(state, value.shape, value.dtype) for state, value in states.items()]
        self._computing = copy.deepcopy(metric).cpu()
        self.names = [f"{name}.value", f"{name}.clients"]
        if self.pooled:
            self.names = [f"{name}.{state}.{i}" for state, value in states.items() for i in range(value.numel())]

    @property
    def higher_is_better(self) -> bool | None:
        """The direction that torchmetrics gives the metric."""
        return self.metric.higher_is_better

    def read(self) -> Tensor:
        """The sums over all samples since the metric was reset, float64 [names]."""
        if self.pooled:
            parts = [getattr(self.metric, state).reshape(-1).double() for state, _, _ in self._shapes]
            return torch.cat(parts)
        try:
            value = _as_scalar(self.metric.compute(), self.name).double()
        except ConfigError:
            raise
        except (ValueError, ZeroDivisionError):  # too few samples, for example
            value = torch.full((), math.nan, dtype=torch.float64)
        defined = value.isfinite()
        return torch.stack([value.where(defined, 0.0), defined.double()])

    def try_out(self, outputs: Tensor, targets: Tensor) -> None:
        """Compute the metric on a few samples, to see any error that it raises."""
        with warnings.catch_warnings(action="ignore"), np.errstate(invalid="ignore", divide="ignore"):
            self.metric.to(outputs.device).reset()
            self.metric.update(outputs, targets)
            self.values(list(self.read()[:, None].cpu().numpy()))
            self.metric.reset()

    def values(self, sums: Sequence[np.ndarray]) -> np.ndarray:
        """The metric of each row, from arrays with one entry per row for each of `names`."""
        if not self.pooled:
            return np.asarray(sums[0] / sums[1])
        return np.array([self._compute(row) for row in np.stack(sums, axis=-1)], dtype=np.float64)

    def _compute(self, row: np.ndarray) -> float:
        if not np.isfinite(row).all():
            return math.nan
        metric, start = self._computing, 0
        for state, shape, dtype in self._shapes:
            stop = start + math.prod(shape)
            setattr(metric, state, torch.from_numpy(row[start:stop].copy()).view(shape).to(dtype))
            start = stop
        try:
            value = type(metric).compute(metric)  # without the cache and the synchronization of `metric.compute`
        except (ValueError, ZeroDivisionError):  # too few samples, for example
            return math.nan
        return float(_as_scalar(value, self.name))


def _adds_up(metric: Metric) -> bool:
    """Whether the states of a metric are tensors that start at zero and are summed."""
    states, count = metric.metric_state, 0
    for name, default in metric._defaults.items():
        if not isinstance(default, Tensor) or metric._reductions[name] is not dim_zero_sum or default.any():
            return False
        count += default.numel()
    return bool(states) and count <= MOST_SUMS


def _as_scalar(value: object, name: str) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ConfigError(f"task: the metric {name} has several values; log one number, e.g. with average='macro'")
    return value.reshape(())


def find_metrics(module: nn.Module) -> list[Metric]:
    """All torchmetrics objects inside a module."""
    return [part for part in module.modules() if isinstance(part, Metric)]


def keep_local(module: nn.Module) -> None:
    """Let the metrics inside a module depend on the tested client only.

    They do not communicate, because ranks test different clients at different times. Collections do not look for
    metrics with equal states, because a few samples of one client may make different metrics look the same.
    """
    for metric in find_metrics(module):
        metric.sync_on_compute = metric._to_sync = metric.dist_sync_on_step = False
        metric.distributed_available_fn = _never
    for collection in _collections(module):
        collection._enable_compute_groups, collection._groups_checked, collection._groups = False, False, {}


def reset_metrics(module: nn.Module) -> None:
    """Forget all that the metrics inside a module have seen."""
    for metric in find_metrics(module):
        metric.reset()
    for collection in _collections(module):
        collection.reset()


@contextmanager
def muted(module: nn.Module) -> Iterator[None]:
    """Switch the metrics inside a module off: they cannot follow the transformations of `torch.func`."""
    kept = [(metric, dict(vars(metric))) for metric in find_metrics(module)]
    for metric, _ in kept:
        vars(metric).update({"update": _zero, "forward": _zero, "compute": _zero})
    try:
        yield
    finally:
        for metric, attributes in kept:
            vars(metric).clear()
            vars(metric).update(attributes)


def _zero(*_: object, **__: object) -> Tensor:
    return torch.zeros(())


def _collections(module: nn.Module) -> list[MetricCollection]:
    return [part for part in module.modules() if isinstance(part, MetricCollection)]


def _never() -> bool:
    return False
