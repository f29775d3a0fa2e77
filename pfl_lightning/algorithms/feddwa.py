"""FedDWA: the server mixes for each client the models nearest to where it would go next. Liu et al., IJCAI 2023."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from pfl_lightning import masks
from pfl_lightning.algorithm import Replies, Server
from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.algorithms.pairwise import pairwise, squared_distance
from pfl_lightning.client import ClientModule
from pfl_lightning.comm import Comm
from pfl_lightning.errors import require
from pfl_lightning.exact_mean import Upload


@dataclass
class FedDWA(FedAvg):
    """A client trains to θ_i and, on a copy, a little further: the guidance θ'_i. Its next model is Σ_j q_ij θ_j with
    q_ij ∝ 1 / ‖θ'_i − θ_j‖² over the k nearest of the round's clients, itself included.

    The global model, which a client has until it is drawn for the first time, is the mean of the round's models.
    Memory per rank: two models for each client that it trains in the round, and one more.
    """

    top_k: int = 5
    """How many models are mixed for a client."""
    guidance_epochs: int = 1
    """Further epochs on the copy."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.top_k >= 1, "top_k", self.top_k, "a whole number >= 1")
        require(self.guidance_epochs >= 0, "guidance_epochs", self.guidance_epochs, "a whole number >= 0")

    @override
    def download(self, client: ClientModule, server: Server) -> None:
        model = client.memory.pop("model", server.vector)
        masks.merge(client.vector, client.mask, model)

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        super().fit(client, server)
        guidance = client.vector.clone()
        with client.holding(guidance):
            client.train_epochs(self.guidance_epochs, stream="guidance")
        client.memory["guidance"] = guidance[: client.layout.num_parameters]

    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        upload = super().upload(client, server)
        upload.values["guidance"] = client.memory.pop("guidance")
        return upload

    @override
    def aggregate(self, server: Server, uploads: Iterator[Upload], comm: Comm) -> Replies:
        mine = list(uploads)
        super().aggregate(server, iter(mine), comm)
        models = {upload.client: upload.values["vector"] for upload in mine}
        parameters = {client: model[: server.layout.num_parameters] for client, model in models.items()}
        guidance = {upload.client: upload.values["guidance"] for upload in mine}
        weights = nearness(pairwise(guidance, parameters, server.theta, squared_distance, comm), self.top_k)
        return {client: {"model": model} for client, model in comm.mix(models, weights, server.vector).items()}


def nearness(distances: Tensor, k: int) -> Tensor:
    """Rows of weights ∝ 1 / squared distance, over the `k` nearest; float64 in and out."""
    inverse = 1 / distances.clamp(min=torch.finfo(torch.float64).tiny ** 0.5)
    nearest = torch.topk(inverse, min(k, len(inverse)), dim=1)
    kept = torch.zeros_like(inverse).scatter_(1, nearest.indices, nearest.values)
    return kept / kept.sum(1, keepdim=True)
