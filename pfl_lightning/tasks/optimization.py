"""The optimizer and the schedulers that `configure_optimizers` returns, in all of Lightning's forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from pfl_lightning.foundation.errors import ConfigError

INTERVALS = ("epoch", "step")
GROUP_RATES = ("lr", "initial_lr", "max_lr", "min_lr")
SCHEDULER_RATES = ("base_lrs", "max_lrs")


@dataclass
class Schedule:
    """A scheduler, and how often it steps within a client's local training."""

    scheduler: LRScheduler
    interval: str = "epoch"
    """`epoch`: after each pass over the client's data. `step`: after each step of the optimizer."""
    frequency: int = 1
    """Number of epochs or steps between two steps of the scheduler."""
    count: int = 0

    def advance(self) -> None:
        """Count an epoch or a step."""
        self.count += 1
        if self.count % self.frequency == 0:
            self.scheduler.step()


@dataclass
class Optimization:
    """An optimizer and the schedulers of its learning rate."""

    optimizer: Optimizer
    schedules: list[Schedule] = field(default_factory=list)

    def scale_rates(self, factor: float) -> None:
        """Multiply all learning rates, and those that the schedulers start from."""
        for group in self.optimizer.param_groups:
            group |= {name: group[name] * factor for name in GROUP_RATES if name in group}
        for schedule in self.schedules:
            _scale_scheduler(schedule.scheduler, factor)

    def set_rate(self, rate: float) -> None:
        """Start with the learning rate `rate`."""
        groups = self.optimizer.param_groups
        if self.schedules:
            self.scale_rates(rate / groups[0].get("initial_lr", groups[0]["lr"]))
            return
        for group in groups:
            group["lr"] = rate


def _scale_scheduler(scheduler: Any, factor: float) -> None:
    for name in SCHEDULER_RATES:
        if hasattr(scheduler, name):
            setattr(scheduler, name, [rate * factor for rate in getattr(scheduler, name)])
    for inner in getattr(scheduler, "_schedulers", ()):  # of a SequentialLR or ChainedScheduler
        _scale_scheduler(inner, factor)


def read_optimizers(value: Any, owner: str) -> Optimization:
    """Understand the return value of `configure_optimizers`.

    Args:
        value: an optimizer, a list with one, ([optimizer], [schedulers]) or a dict with `optimizer` and `lr_scheduler`.
        owner: the class name of the module, for error messages.
    """
    schedulers: Sequence[Any] = ()
    if isinstance(value, Mapping) and "optimizer" in value:
        schedulers = [value["lr_scheduler"]] if value.get("lr_scheduler") is not None else []
        value = value["optimizer"]
    elif isinstance(value, list | tuple):
        if len(value) == 2 and isinstance(value[0], list | tuple) and isinstance(value[1], list | tuple):
            value, schedulers = value
        if len(value) > 1:
            raise ConfigError(f"task: {owner}.configure_optimizers returns {len(value)} optimizers; return one")
        value = value[0] if value else None
        if isinstance(value, Mapping):
            return read_optimizers(value, owner)
    if not isinstance(value, Optimizer):
        raise ConfigError(
            f"task: {owner}.configure_optimizers must return one torch optimizer, [optimizer], "
            f"([optimizer], [scheduler]) or a dict with optimizer and lr_scheduler, not {type(value).__name__}"
        )
    if isinstance(value, LBFGS):
        raise ConfigError(f"task: {owner} uses LBFGS, which computes the loss several times in a step; use another one")
    return Optimization(value, [_read_schedule(each, owner) for each in schedulers])


def _read_schedule(value: Any, owner: str) -> Schedule:
    options: Mapping[str, Any] = value if isinstance(value, Mapping) else {"scheduler": value}
    scheduler, interval = options.get("scheduler"), options.get("interval", "epoch")
    if isinstance(scheduler, ReduceLROnPlateau) or options.get("reduce_on_plateau"):
        raise ConfigError(
            f"task: {owner} uses ReduceLROnPlateau, which has no metric to watch within a visit; use another scheduler"
        )
    if not isinstance(scheduler, LRScheduler):
        raise ConfigError(f"task: {owner}.configure_optimizers returns a scheduler {scheduler!r}; use one of torch")
    if interval not in INTERVALS:
        raise ConfigError(f"task: {owner} has a scheduler with interval {interval!r}; use epoch or step")
    return Schedule(scheduler, interval, int(options.get("frequency", 1)))
