"""FedBABU: only the body learns in the federation. Fine-tuning makes it personal. Oh, Kim, Yun, ICLR 2022."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from typing_extensions import override

from pfl_lightning.algorithm import Exchange, Server
from pfl_lightning.algorithms.parts.split import Split
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.foundation.errors import require
from pfl_lightning.model.client import ClientModule
from pfl_lightning.tasks import Task


@dataclass
class FedBABU(Split):
    """The head stays at its common random start, so all clients' bodies learn for the same head. The result is the
    fine-tuned copy: set `loop.finetune_epochs` (5 in the paper). An empty head is FedAvg.
    """

    finetuned: Literal["all", "head", "body"] = "all"
    """The part of the model that fine-tuning may change."""
    finetune_factor: float = 0.01
    """Learning rate of fine-tuning as a multiple of the training rate, unless `loop.finetune_lr` gives the rate."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.finetuned in ("all", "head", "body"), "finetuned", self.finetuned, "all, head or body")
        require(self.finetune_factor > 0, "finetune_factor", self.finetune_factor, "a number above 0")
        require(self.head != [] or self.finetuned != "head", "finetuned", "head", "all or body, as the head is empty")

    @override
    def check(self, task: Task, data: FederatedData) -> None:
        super().check(task, data)
        require(not self.all_is_head(task), "algorithm.head", self.head, "less than the whole model")

    @override
    def exchange(self, client: ClientModule) -> Exchange:
        """The frozen head is the same everywhere: nobody keeps it and nobody sends it."""
        return Exchange(client.mask, ~(client.mask | self.in_head(client)))

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        with client.freezing(self.head_modules(client.task)):
            client.train_epochs()

    @override
    def finetune(self, client: ClientModule, server: Server, epochs: int) -> None:
        head = self.head_modules(client.task)
        parts = {"all": client.freezing([]), "head": client.only(head), "body": client.freezing(head)}
        with parts[self.finetuned]:
            client.train_epochs(epochs, lr=client.learning_rate * self.finetune_factor)
