"""FedBN: FedAvg, but BatchNorm layers stay with the client. Li et al., ICLR 2021."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from typing_extensions import override

from pfl_lightning.algorithm import Server
from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.model import masks
from pfl_lightning.model.client import ClientModule
from pfl_lightning.tasks.task import Task


@dataclass
class FedBN(FedAvg):
    """Weight, bias, running mean and variance of every BatchNorm layer are personal.

    A client's first model has the initial weight and bias, and statistics from one pass over its own training data:
    initial ones fit nobody. Training does not use them, so this changes tests only.
    """

    @override
    def check(self, task: Task, data: FederatedData) -> None:
        if not any(isinstance(module, _BatchNorm) for module in task.modules()):
            raise ConfigError("task.net: FedBN needs a net with BatchNorm layers; without them it is FedAvg")

    @override
    def setup(self, client: ClientModule, server: Server) -> None:
        super().setup(client, server)
        client.mask |= masks.by_type(client.task, client.layout, _BatchNorm)

    @override
    def download(self, client: ClientModule, server: Server) -> None:
        super().download(client, server)
        if not client.visits:
            estimate_statistics(client)


@torch.no_grad()
def estimate_statistics(client: ClientModule) -> None:
    """Set BatchNorm's statistics to the mean over batches of the client's training data, at the present weights."""
    norms = [part for part in client.task.modules() if isinstance(part, _BatchNorm) and part.track_running_stats]
    batches = [batch for batch in client.batches("statistics") if len(batch[1]) > 1] if norms else []
    if not batches:
        return
    client.task.eval()
    momentum = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over batches instead of a moving one
        norm.train()
    for batch in batches:
        with client.fabric_.autocast():
            client.task.training_step(batch)
    for norm, value in zip(norms, momentum, strict=True):
        norm.momentum = value
