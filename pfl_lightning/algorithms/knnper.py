"""kNN-Per: FedAvg, its predictions mixed with a vote of the client's nearest samples. Marfoq et al., ICML 2022."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, softmax
from typing_extensions import override

from pfl_lightning.algorithm import Server
from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.algorithms.parts.features import features, require_classifier, require_head
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.foundation.errors import require
from pfl_lightning.foundation.seeds import derive_seed
from pfl_lightning.model.client import ClientModule
from pfl_lightning.tasks.task import Task


@dataclass
class KNNPer(FedAvg):
    """p = λ p_kNN + (1 − λ) softmax(logits), with p_kNN(c) ∝ Σ exp(−d² / (D σ)) over those of the k nearest training
    samples that have class c. d is the distance of features, D their number. Nothing is trained, nothing is kept: the
    features are computed at each test, so a client never drawn profits as well.
    """

    k: int = 10
    """Neighbours that vote (all, of a client with fewer samples). 0 is FedAvg."""
    lam: float = 0.5
    """Weight of the vote. 0 is FedAvg, 1 the vote alone."""
    sigma: float = 1.0
    """Scale of the distances."""
    capacity: float = 1.0
    """Share of the training samples that may vote, drawn at random."""
    validation: float = 0.0
    """Share of the training samples on which each client chooses its own lam (0, 0.01, …, 1; the most correct, then the
    smallest), the others voting. 0.0: lam as given. The global model has been trained on them, so lam comes out low."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.k >= 0, "k", self.k, "a whole number >= 0")
        require(0 <= self.lam <= 1, "lam", self.lam, "a number from 0 to 1")
        require(self.sigma > 0, "sigma", self.sigma, "a number > 0")
        require(0 <= self.capacity <= 1, "capacity", self.capacity, "a number from 0 to 1")
        require(0 <= self.validation < 1, "validation", self.validation, "a number from 0 up to, not including, 1")

    @override
    def check(self, task: Task, data: FederatedData) -> None:
        require_classifier(task, data, "KNNPer")
        require_head(task, data, "KNNPer", linear=False)

    @override
    @torch.no_grad()
    def test(self, client: ClientModule, server: Server) -> Tensor:
        z, y = self.datastore(client)
        if not (self.k and len(y)) or not (self.lam or self.validation):
            return client.test()
        lam = self.choose(client, z, y) if self.validation else self.lam

        def mixed(head: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            """Log-probabilities in the place of the logits that the head returns."""
            with torch.autocast(z.device.type, enabled=False):
                query = inputs[0].float()
                model = softmax(head.forward(query), 1)
                return (lam * self.vote(query, z, y, client) + (1 - lam) * model).clamp(min=1e-12).log()

        handle = client.task.head.register_forward_hook(mixed)
        try:
            return client.test()
        finally:
            handle.remove()

    def datastore(self, client: ClientModule) -> tuple[Tensor, Tensor]:
        """The samples that vote: their features by the present body, and their labels."""
        shuffle = torch.Generator().manual_seed(derive_seed(client.seed, "datastore", client.id))
        order = client.train_indices[torch.randperm(client.num_samples, generator=shuffle)]
        return features(client, order[: round(self.capacity * len(order))])

    def vote(self, query: Tensor, z: Tensor, y: Tensor, client: ClientModule) -> Tensor:
        """p_kNN [Q, C] of the samples `query` [Q, D], by their neighbours among `z` [N, D] with labels `y`."""
        squares = torch.cdist(query, z, compute_mode="donot_use_mm_for_euclid_dist").square()
        nearest = torch.topk(squares, min(self.k, len(y)), dim=1, largest=False)
        # exp(−d²/(Dσ)) / Σ exp(−d²/(Dσ)), written so that far neighbours do not end in 0/0
        weights = softmax(-nearest.values / (z.shape[1] * self.sigma), dim=1)
        labels = one_hot(y[nearest.indices], client.data.spec.num_classes).to(weights.dtype)
        return (weights[:, None] @ labels).squeeze(1)

    def choose(self, client: ClientModule, z: Tensor, y: Tensor) -> float:
        """The λ that gets most of the held-out part of the datastore right."""
        held = int(self.validation * len(y))
        if not held:
            return self.lam
        vote = self.vote(z[:held], z[held:], y[held:], client)
        model = softmax(client.task.head(z[:held]), 1)
        grid = torch.linspace(0, 1, 101, device=z.device)[:, None, None]
        correct = ((grid * vote + (1 - grid) * model).argmax(2) == y[:held]).sum(1)
        return float(grid[int(correct.argmax())])
