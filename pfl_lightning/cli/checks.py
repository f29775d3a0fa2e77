"""Checks of a user's own task, made once its layers exist and before anything is written."""

from __future__ import annotations

from torch import nn

from pfl_lightning.cli.failure import describe
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.tasks.task import Task


def check_net(task: Task) -> None:
    """Refuse a task without a net: algorithms ask for its layers."""
    if not isinstance(getattr(task, "net", None), nn.Module):
        raise ConfigError(f"task: {type(task).__name__} has no net; its build(spec) must set self.net to a module")


def check_optimizer(task: Task) -> None:
    """Make the optimizer once. Its settings, such as a negative learning rate, are checked by its constructor."""
    try:
        task.optimization()
    except ConfigError:
        raise
    except (ValueError, TypeError) as error:
        raise ConfigError(f"task.optimizer: {error}") from error
    except Exception as error:
        raise ConfigError(f"task: configure_optimizers failed: {describe(error)}") from error
