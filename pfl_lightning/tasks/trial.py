"""The trial of a LightningModule before the first round: each step and hook once, with one line for each failure."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pfl_lightning.foundation.errors import ConfigError, RunError
from pfl_lightning.tasks.metric_sums import MetricSums, find_metrics

if TYPE_CHECKING:
    from pfl_lightning.tasks.lightning_task import LightningTask
    from pfl_lightning.tasks.task import Autocast, Batch

NO_LOGGER = "self.logger is None; log numbers with self.log"


def try_module(task: LightningTask, batch: Batch, autocast: Autocast) -> None:
    """Run each step and hook on one batch. Afterwards the logs of the task know their names."""
    kind = type(task.module).__name__
    try:
        with warnings.catch_warnings(action="ignore"):  # metrics complain about so few samples
            loss = _train(task, batch, autocast)
            task.eval()
            with torch.no_grad():
                sums = task.test_sums([batch], autocast)
            _check_metrics(task)
            task.logged.try_values(sums)
            task.optimization()
    except (ConfigError, RunError):
        raise
    except Exception as error:
        place = f"{kind}.{task.hooks.latest}"
        raise ConfigError(f"task: {place} fails on a batch of {len(batch[1])} samples: {reason(error)}") from error
    if loss.numel() != 1 or not loss.requires_grad:
        raise ConfigError(f"task: {kind}.training_step must return a loss, one number with a gradient")
    if not loss.isfinite():
        raise ConfigError(f"task: {kind}.training_step returns the loss {float(loss.detach())} for the first samples")
    if not task.logged.entries:
        raise ConfigError(f"task: {kind}.{task.phase}_step logs nothing; log a number or a metric with self.log")


def _check_metrics(task: LightningTask) -> None:
    """Refuse logged metrics outside the module: nobody would reset them between clients."""
    parts = {id(metric) for metric in find_metrics(task.module)}
    for name, entry in {**task.trained.entries, **task.logged.entries}.items():
        if isinstance(entry, MetricSums) and id(entry.metric) not in parts:
            raise ConfigError(
                f"task: {type(task.module).__name__} logs the metric {name}, which is no attribute of the module; set "
                "it in __init__, and use nn.ModuleDict or nn.ModuleList instead of a dict or list"
            )


def _train(task: LightningTask, batch: Batch, autocast: Autocast) -> Tensor:
    """The loss of one batch, with the hooks of a training around it."""
    hooks = task.hooks
    task.train()
    hooks.trainer.training = True
    hooks.call("on_train_start")
    hooks.call("on_train_epoch_start")
    hooks.call("on_train_batch_start", batch, 0)
    with autocast():
        loss = task.training_step(batch)
    if loss.numel() == 1 and loss.requires_grad:
        _step(task, loss)
    hooks.call("on_train_batch_end", task.outputs, batch, 0)
    hooks.call("on_train_epoch_end")
    hooks.call("on_train_end")
    hooks.trainer.training, task.outputs = False, {}
    return loss


def _step(task: LightningTask, loss: Tensor) -> None:
    """The hooks around the gradient of a loss and a step of the optimizer, which is not made."""
    hooks, optimizer = task.hooks, task.optimization().optimizer
    kept = [(p, p.grad) for p in task.parameters()]
    hooks.call("on_before_zero_grad", optimizer)
    hooks.call("on_before_backward", loss)
    hooks.latest = "training_step"
    loss.backward()  # type: ignore[no-untyped-call]
    hooks.call("on_after_backward")
    hooks.call("on_before_optimizer_step", optimizer)
    hooks.call("configure_gradient_clipping", optimizer, task.gradient_clip, "norm")
    for p, grad in kept:
        p.grad = None if grad is None else grad.zero_()


def reason(error: Exception) -> str:
    """The kind of an error and the first line of its message, with advice for code that expects other things."""
    message = str(error).strip()
    if "must be a mapping" in message:  # after the text of a whole module
        message = message[message.rfind("argument after **") :]
    text = f"{type(error).__name__}: {message.partition(chr(10))[0]}"
    if "tuple indices" in text or "'tuple' object" in text or "to unpack" in text or "not tuple" in text:
        return f"{text}; a batch is a pair (inputs, targets)"
    if "'NoneType' object has no attribute 'experiment'" in text or "no attribute 'log_" in text:
        return f"{text}; {NO_LOGGER}"
    return text
