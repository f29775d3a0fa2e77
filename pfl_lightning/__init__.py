"""Personalized federated learning on PyTorch Lightning Fabric.

Importing the package is quick: a public name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pfl_lightning.algorithm import Algorithm, Exchange, Reply, Server, Upload, Uploads
    from pfl_lightning.callback import Callback
    from pfl_lightning.cli.saved_run import load_client
    from pfl_lightning.data.federated import DataSpec, FederatedData, Samples
    from pfl_lightning.loop import FederatedFabricLoop
    from pfl_lightning.loop_config import LoopConfig
    from pfl_lightning.metrics.record import RoundRecord
    from pfl_lightning.model.client import ClientModule
    from pfl_lightning.nets.net import Net
    from pfl_lightning.notebook.fit import fit
    from pfl_lightning.notebook.result import FitResult
    from pfl_lightning.store.config import StoreConfig
    from pfl_lightning.tasks.classification import Classification
    from pfl_lightning.tasks.regression import Forecasting, Regression
    from pfl_lightning.tasks.task import Task

__version__ = version("pfl_lightning")

_HOMES = {
    "pfl_lightning.algorithm": ("Algorithm", "Exchange", "Reply", "Server", "Upload", "Uploads"),
    "pfl_lightning.callback": ("Callback",),
    "pfl_lightning.cli.saved_run": ("load_client",),
    "pfl_lightning.data.federated": ("DataSpec", "FederatedData", "Samples"),
    "pfl_lightning.loop": ("FederatedFabricLoop",),
    "pfl_lightning.loop_config": ("LoopConfig",),
    "pfl_lightning.metrics.record": ("RoundRecord",),
    "pfl_lightning.model.client": ("ClientModule",),
    "pfl_lightning.nets.net": ("Net",),
    "pfl_lightning.notebook.fit": ("fit",),
    "pfl_lightning.notebook.result": ("FitResult",),
    "pfl_lightning.store.config": ("StoreConfig",),
    "pfl_lightning.tasks.classification": ("Classification",),
    "pfl_lightning.tasks.regression": ("Forecasting", "Regression"),
    "pfl_lightning.tasks.task": ("Task",),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Algorithm",
    "Callback",
    "Classification",
    "ClientModule",
    "DataSpec",
    "Exchange",
    "FederatedData",
    "FederatedFabricLoop",
    "FitResult",
    "Forecasting",
    "LoopConfig",
    "Net",
    "Regression",
    "Reply",
    "RoundRecord",
    "Samples",
    "Server",
    "StoreConfig",
    "Task",
    "Upload",
    "Uploads",
    "fit",
    "load_client",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'pfl_lightning' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
