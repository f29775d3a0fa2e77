"""LG-FedAvg: a personal representation below a shared head. Liang et al., arXiv 2001.01523, 2020."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from pfl_lightning.algorithm import Server
from pfl_lightning.algorithms.parts.split import Split
from pfl_lightning.foundation.errors import require
from pfl_lightning.model.client import ClientModule


@dataclass
class LGFedAvg(Split):
    """The opposite of FedPer: all layers are trained, the head (`head`: the top layers) is averaged, all below it stays
    with the client, BatchNorm statistics included. A head that is the whole model is FedAvg, an empty one Local.
    """

    warmup_rounds: int = 0
    """Rounds of FedAvg at the start. The authors continue from a model that FedAvg has trained."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.warmup_rounds >= 0, "warmup_rounds", self.warmup_rounds, "a whole number >= 0")

    @override
    def download(self, client: ClientModule, server: Server) -> None:
        # a client without layers of its own yet takes the server's, which nobody has changed since the warm-up
        super().download(client, server)
        if server.round > self.warmup_rounds:
            client.mask |= ~self.in_head(client)
