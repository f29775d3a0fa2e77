"""pFedFDA: a common body. The head is the Bayes classifier of class-wise Gaussians. McLaughlin and Su, NeurIPS 2024."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from typing_extensions import override

from pfl_lightning.algorithm import Exchange, Replies, Server, Upload, Uploads
from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.algorithms.parts.features import (
    features,
    linear_head,
    require_classifier,
    require_head,
    step_through,
)
from pfl_lightning.algorithms.parts.gaussian import Gaussians, bayes_classifier, choose_beta, estimate
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.foundation.errors import require
from pfl_lightning.foundation.seeds import derive_seed
from pfl_lightning.metrics import ledger
from pfl_lightning.model import masks
from pfl_lightning.model.client import ClientModule
from pfl_lightning.tasks.task import Batch, Task


@dataclass
class PFedFDA(FedAvg):
    """Features of class c are taken as N(μ_c, Σ). The body is trained under the fixed classifier of the global (μ, Σ);
    then each client mixes its own estimate with the global one by its own β, chosen by cross-validation on its training
    features, and the mixtures are averaged. The head is made of features and never travels.

    A client never drawn works in full: it makes its head from its own training data as all others do.
    """

    ridge: float = 1.0
    """Added to the diagonal of a local covariance. The authors' code has 1. Surely 1e-4 was meant."""
    single_beta: bool = False
    """One β for means and covariance instead of one each."""
    beta: float | None = None
    """A fixed β instead of a chosen one: 0.0 is the global classifier, 1.0 a purely local one."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.ridge >= 0, "ridge", self.ridge, "a number >= 0")
        require(self.beta is None or 0 <= self.beta <= 1, "beta", self.beta, "a number from 0 to 1, or null")

    @override
    def check(self, task: Task, data: FederatedData) -> None:
        require_classifier(task, data, "PFedFDA")
        require_head(task, data, "PFedFDA")

    @override
    def init_server(self, client: ClientModule, server: Server) -> None:
        classes, size = linear_head(client).weight.shape
        random = torch.Generator().manual_seed(derive_seed(client.seed, "class means"))
        server.memory["means"] = torch.rand(classes, size, generator=random).to(server.vector)
        server.memory["covariance"] = triangle(torch.eye(size)).to(server.vector)

    @override
    def download(self, client: ClientModule, server: Server) -> None:
        super().download(client, server)
        self.set_head(client, self.personal(client, server, *features(client)))

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        self.set_head(client, global_gaussians(server))
        seen: list[tuple[Tensor, Tensor]] = []
        with client.freezing([client.task.head]):
            client.train_epochs(loss=lambda batch: noting_loss(client, batch, seen))
        z, y = (torch.cat(parts) for parts in zip(*seen, strict=True)) if seen else features(client)
        own = self.personal(client, server, z, y)
        self.set_head(client, own)
        client.memory |= {"means": own.means, "covariance": triangle(own.covariance)}

    def personal(self, client: ClientModule, server: Server, z: Tensor, y: Tensor) -> Gaussians:
        """The client's mixture of its own Gaussians, of these features, and the global ones."""
        common, z = global_gaussians(server), z.double()
        if self.beta is None:
            beta = choose_beta(z, y, common, priors(client), self.ridge, self.single_beta)
        else:
            beta = torch.full((2,), self.beta, device=z.device).to(z.dtype)
        client.memory["beta"] = beta
        return estimate(z, y, common, self.ridge).mixed(common, beta)

    def set_head(self, client: ClientModule, gaussians: Gaussians) -> None:
        """Make the head the Bayes classifier of these Gaussians and the client's class shares."""
        weight, bias = bayes_classifier(gaussians, priors(client))
        linear_head(client).weight.data.copy_(weight)
        linear_head(client).bias.data.copy_(bias)

    @override
    def exchange(self, client: ClientModule) -> Exchange:
        """The head is computed from features, so nobody sends it."""
        head = masks.by_module(client.task, client.layout, client.task.head)
        return Exchange(client.mask, ~(client.mask | head))

    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        upload = super().upload(client, server)
        upload.values |= {name: client.memory.pop(name) for name in ("means", "covariance")}
        return upload

    @override
    def down_bytes(self, client: ClientModule, server: Server) -> int:
        more = server.memory["means"].numel() + server.memory["covariance"].numel()
        return super().down_bytes(client, server) + ledger.dense_bytes(more)

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies | None:
        names = ("means", "covariance")
        current = {"vector": server.vector, **{name: server.memory[name] for name in names}}
        mean = uploads.mean(current)
        server.vector.copy_(mean["vector"])
        server.memory |= {name: mean[name] for name in names}
        return None


def priors(client: ClientModule) -> Tensor:
    """The shares of the classes in the client's training data, none of them zero. # [C]"""
    _, y = client.data.batch(client.train_indices, client.vector.device)
    counts = one_hot(y, client.data.spec.num_classes).sum(0)  # `bincount` would let the host wait for a GPU
    shares = counts.double() / counts.sum().clamp(min=1) + 1e-4
    return shares / shares.sum()


def noting_loss(client: ClientModule, batch: Batch, seen: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The task's loss under the fixed head. The features are kept for the estimate."""
    step = step_through(client.task, batch, "pFedFDA")
    seen.append((step.features.detach().float(), batch[1]))
    return step.loss


def global_gaussians(server: Server) -> Gaussians:
    """The server's estimate, in float64, in which matrices are solved."""
    size = server.memory["means"].shape[1]
    full = server.memory["covariance"].new_zeros(size, size)
    rows, columns = torch.triu_indices(size, size, device=full.device)
    full[rows, columns] = full[columns, rows] = server.memory["covariance"]
    return Gaussians(server.memory["means"].double(), full.double())


def triangle(matrix: Tensor) -> Tensor:
    """A symmetric matrix [D, D] as its upper triangle [D(D + 1)/2], the part that travels."""
    rows, columns = torch.triu_indices(*matrix.shape, device=matrix.device)
    return matrix[rows, columns]
