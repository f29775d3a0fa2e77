"""FedPer: a shared body and a personal head. Arivazhagan et al., arXiv 1912.00818, 2019."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from pfl_lightning.algorithm import Server
from pfl_lightning.algorithms.parts.split import Split
from pfl_lightning.model.client import ClientModule


@dataclass
class FedPer(Split):
    """Body and head are trained together. The head never leaves the client, the body is averaged.

    A client never drawn has the common initial head: the server knows no other. An empty head is FedAvg, a
    head that is the whole model is Local.
    """

    @override
    def setup(self, client: ClientModule, server: Server) -> None:
        super().setup(client, server)
        client.mask |= self.in_head(client)
