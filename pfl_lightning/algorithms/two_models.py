"""A model of one's own beside a copy of the global one: what Ditto, APFL and pFedMe have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from typing_extensions import override

from pfl_lightning.algorithm import Server
from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.client import ClientModule
from pfl_lightning.errors import require
from pfl_lightning.exact_mean import Upload


@dataclass
class TwoModels(FedAvg):
    """The live model is the client's own, all of it personal; `fit` leaves the trained copy of the global model in
    `client.memory["shared"]`, and that one is uploaded and averaged.
    """

    uploads_personal = True

    first_visit: Literal["global", "initial"] = "global"
    """A client's own model starts from the global model of that moment, or from the common initial model."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.first_visit in ("global", "initial"), "first_visit", self.first_visit, "global or initial")

    @override
    def setup(self, client: ClientModule, server: Server) -> None:
        client.mask.fill_(True)
        if self.first_visit == "global":
            client.vector.copy_(server.vector)

    def received(self, client: ClientModule, server: Server) -> Tensor:
        """The copy of the global model [S] that the client trains."""
        return server.vector.clone()

    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        entries = self.travels(client)
        share = {} if entries is None else {"vector": entries}
        return Upload(client.id, {"vector": client.memory.pop("shared")}, client.weight, share)
