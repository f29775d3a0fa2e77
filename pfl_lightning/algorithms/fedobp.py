"""FedOBP: keep the few parameters whose change matters most (optimal brain personalization). FedOBP paper, Eq. 19."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from pfl_lightning import masks
from pfl_lightning.algorithm import Server
from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.client import ClientModule
from pfl_lightning.errors import require


@dataclass
class FedOBP(FedAvg):
    """A client scores each parameter by (θ_i − θ_g)², θ_i its own model after its last training, θ_g the one just
    received, and keeps those strictly above a quantile. It uploads everything; the server averages everything.
    """

    quantile: float = 0.9999
    """Share of parameters taken from the server; 1.0 is FedAvg."""
    normalization: Literal["none", "layer", "global"] = "none"
    """Min-max scaling of the scores per tensor or over all. Global never changes the selection."""
    scope: Literal["all", "classifier"] = "all"
    """Score and select among all parameters, or inside the classifier (the net's head) only."""
    first_visit: Literal["global", "initial"] = "global"
    """At a client's first visit: nothing is personal, or the common initial model counts as its previous model."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.quantile <= 1, "quantile", self.quantile, "a number from 0 to 1")
        require(
            self.normalization in ("none", "layer", "global"),
            "normalization",
            self.normalization,
            "none, layer or global",
        )
        require(self.scope in ("all", "classifier"), "scope", self.scope, "all or classifier")
        require(self.first_visit in ("global", "initial"), "first_visit", self.first_visit, "global or initial")

    @override
    def setup(self, client: ClientModule, server: Server) -> None:
        super().setup(client, server)
        if self.first_visit == "initial":
            client.memory["theta"] = server.initial[: server.layout.num_parameters].clone()

    @override
    def download(self, client: ClientModule, server: Server) -> None:
        if "theta" in client.memory:
            own = client.memory["theta"]
            client.mask[: len(own)] = self.select(self.score(client, server), client)
            client.theta.copy_(own)
        super().download(client, server)

    def score(self, client: ClientModule, server: Server) -> Tensor:
        """Eq. 19 [P]."""
        return (client.memory["theta"] - server.theta).square_()

    def select(self, score: Tensor, client: ClientModule) -> Tensor:
        """The personal parameters, bool [P]."""
        layout = client.layout
        if self.normalization != "none":
            score = masks.min_max(score, layout.parameter_spans if self.normalization == "layer" else None)
        if self.scope == "all":
            return masks.above_quantile(score, self.quantile)
        inside = masks.by_module(client.task, layout, client.task.net.head)[: layout.num_parameters]
        personal = torch.zeros_like(inside)
        personal[inside] = masks.above_quantile(score[inside], self.quantile)
        return personal

    @override
    def travels(self, client: ClientModule) -> Tensor | None:
        entries = super().travels(client)
        if entries is not None:  # local BatchNorm statistics; parameters are uploaded even where they are personal
            entries[: client.layout.num_parameters] = True
        return entries

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        super().fit(client, server)
        client.memory["theta"] = client.theta.clone()
