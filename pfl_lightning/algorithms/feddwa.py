"""FedDWA: the server mixes for each client the models nearest to where it would go next. Liu et al., IJCAI 2023."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from pfl_lightning.algorithm import Replies, Reply, Server, Upload, Uploads
from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.algorithms.parts.pairwise import squared_distance
from pfl_lightning.foundation.errors import require
from pfl_lightning.metrics.ledger import dense_bytes
from pfl_lightning.model import masks
from pfl_lightning.model.client import ClientModule


@dataclass
class FedDWA(FedAvg):
    """A client trains to θ_i and, on a copy, as much again: the guidance θ'_i. Its next model is Σ_j q_ij θ_j with
    q_ij ∝ 1 / ‖θ'_i − θ_j‖² over the k nearest of the round's clients, itself included.

    The global model, which a client has until it is drawn for the first time, is the mean of the round's models.
    Memory per rank: two models for each client that it trains in the round, and one more.
    """

    top_k: int = 5
    """How many models are mixed for a client."""
    guidance_epochs: int | None = None
    """Further epochs on the copy. null: as many as `loop.local_epochs`."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.top_k >= 1, "top_k", self.top_k, "a whole number >= 1")
        epochs = self.guidance_epochs
        require(epochs is None or epochs >= 0, "guidance_epochs", epochs, "a whole number >= 0, or null")

    @override
    def download(self, client: ClientModule, server: Server) -> None:
        model = client.memory.pop("model", server.vector)
        masks.merge(client.vector, client.mask, model)

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        super().fit(client, server)
        guidance = client.vector.clone()
        with client.swap_in(guidance):
            client.train_epochs(self.guidance_epochs, stream="guidance")
        client.memory["guidance"] = guidance[: client.layout.num_parameters]

    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        upload = super().upload(client, server)
        model, guidance = client.vector.clone(), client.memory.pop("guidance")
        upload.bytes = upload.count_bytes() + dense_bytes(len(guidance))
        upload.extra = {"model": model, "parameters": model[: client.layout.num_parameters], "guidance": guidance}
        return upload

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies:
        super().aggregate(server, uploads)
        distances = uploads.pairwise("guidance", "parameters", server.theta, squared_distance)
        mixtures = uploads.mix("model", nearness(distances, self.top_k), server.vector)
        return ((client, Reply({"model": model})) for client, model in mixtures)


def nearness(distances: Tensor, k: int) -> Tensor:
    """Rows of weights ∝ 1 / squared distance, over the `k` nearest. Float64 in and out."""
    inverse = 1 / distances.clamp(min=torch.finfo(torch.float64).tiny ** 0.5)
    nearest = torch.topk(inverse, min(k, len(inverse)), dim=1)
    kept = torch.zeros_like(inverse).scatter_(1, nearest.indices, nearest.values)
    return kept / kept.sum(1, keepdim=True)
