"""A model in two parts, for the layer-wise methods FedPer, FedRep, FedBABU, LG-FedAvg and FedALA."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from typing_extensions import override

from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.foundation.errors import require
from pfl_lightning.model import masks
from pfl_lightning.model.client import ClientModule
from pfl_lightning.tasks import Task


@dataclass
class Split(FedAvg):
    """Finds the head. Subclasses decide how to use it."""

    head: list[str] | None = None
    """The modules that make up the head, such as [net.body.fc1, net.head]. By default the head of the task alone."""

    @override
    def check(self, task: Task, data: FederatedData) -> None:
        paths = [path for path, _ in task.named_modules() if path]
        for path in self.head or ():
            require(path in paths, "algorithm.head", path, " | ".join(paths))
        self.head_modules(task)

    def head_modules(self, task: Task) -> list[nn.Module]:
        """The modules of the head."""
        return [task.head] if self.head is None else [task.get_submodule(path) for path in self.head]

    def all_is_head(self, task: Task) -> bool:
        """Whether no parameter is left for the body."""
        inside = {p for module in self.head_modules(task) for p in module.parameters()}
        return all(p in inside for p in task.parameters())

    def in_head(self, client: ClientModule) -> Tensor:
        """The entries of the head, bool [S]."""
        inside = torch.zeros_like(client.mask)
        for module in self.head_modules(client.task):
            inside |= masks.by_module(client.task, client.layout, module)
        return inside
