"""FedRep: as FedPer, but first the head learns on the fixed body, then the body. Collins et al., ICML 2021."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from pfl_lightning.algorithm import Server
from pfl_lightning.algorithms.fedper import FedPer
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.foundation.errors import require
from pfl_lightning.model.client import ClientModule
from pfl_lightning.tasks import Task


@dataclass
class FedRep(FedPer):
    """Head, then body, each with the other one frozen, the body's BatchNorm statistics included. The two numbers of
    epochs take the place of `loop.local_epochs`.
    """

    head_epochs: int = 10
    """Epochs for the head at a visit, the body being frozen."""
    body_epochs: int = 1
    """Epochs for the body at a visit, the new head being frozen."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("head_epochs", "body_epochs"):
            require(getattr(self, key) >= 0, key, getattr(self, key), "a whole number >= 0")

    @override
    def check(self, task: Task, data: FederatedData) -> None:
        super().check(task, data)
        idle = self.body_epochs == 0 or not self.all_is_head(task)
        require(idle, "algorithm.body_epochs", self.body_epochs, "0, as the head is the whole model")

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        self.finetune(client, server, self.head_epochs)
        if self.body_epochs:
            with client.freezing(self.head_modules(client.task)):
                client.train_epochs(self.body_epochs)

    @override
    def finetune(self, client: ClientModule, server: Server, epochs: int) -> None:
        head = self.head_modules(client.task)
        if head and epochs:
            with client.only(head):
                client.train_epochs(epochs, stream="head")
