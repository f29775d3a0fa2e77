"""FedAvg FT as the pFedSOP paper defines it: fine-tune the received model, test it, and train on from there."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from pfl_lightning.algorithm import Server
from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.foundation.errors import require
from pfl_lightning.model.client import ClientModule


@dataclass
class FedAvgFT(FedAvg):
    """A client fine-tunes the received model on its own data. The result is tested `before` training, and it is where
    local training starts. The usual fine-tuning of a throw-away copy is `loop.finetune_epochs` with FedAvg.
    """

    start_epochs: int = 1
    """Epochs of fine-tuning with the plain loss, beside `loop.local_epochs`. 0 is FedAvg."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.start_epochs >= 0, "start_epochs", self.start_epochs, "a whole number >= 0")

    @override
    def download(self, client: ClientModule, server: Server) -> None:
        super().download(client, server)
        if self.start_epochs:
            client.train_epochs(self.start_epochs, stream="start")
