"""A personal model beside a copy of the global one, for Ditto, APFL and pFedMe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from typing_extensions import override

from pfl_lightning.algorithm import Exchange, Server, Upload
from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.foundation.errors import require
from pfl_lightning.model.client import ClientModule


@dataclass
class TwoModels(FedAvg):
    """The live model is the client's own, all of it personal. `fit` leaves the trained copy of the global model in
    `client.memory["shared"]`, and that one is uploaded and averaged.
    """

    first_visit: Literal["global", "initial"] = "global"
    """A client's own model starts from the global model of that moment, or from the common initial model."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.first_visit in ("global", "initial"), "first_visit", self.first_visit, "global or initial")

    @override
    def exchange(self, client: ClientModule) -> Exchange:
        return Exchange.of_everything(client, self.bn_buffers)

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
        return self.upload_model(client, client.memory.pop("shared"))
