"""Tasks: models with their losses and metrics."""

from pfl_lightning.tasks.classification import Classification
from pfl_lightning.tasks.lightning_task import LightningTask
from pfl_lightning.tasks.regression import Forecasting, Regression
from pfl_lightning.tasks.task import Task

__all__ = ["Classification", "Forecasting", "LightningTask", "Regression", "Task"]
