"""Local: no cooperation, every client trains a model of its own. The anchor that any cooperation must beat."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from pfl_lightning.algorithm import Server
from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.model.client import ClientModule


@dataclass
class Local(FedAvg):
    """All entries are personal, so nothing travels. A client trains only in the rounds it is drawn for."""

    @override
    def setup(self, client: ClientModule, server: Server) -> None:
        client.mask.fill_(True)
