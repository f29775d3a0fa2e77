"""FedPAC: features are drawn to common class means, heads combined for each client. Xu, Tong and Huang, ICLR 2023."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import mse_loss
from typing_extensions import override

from pfl_lightning.algorithm import Replies, Reply, Server, Upload, Uploads
from pfl_lightning.algorithms.fedrep import FedRep
from pfl_lightning.algorithms.parts.features import (
    class_means,
    features,
    linear_head,
    require_classifier,
    require_head,
    step_through,
)
from pfl_lightning.algorithms.parts.head_weights import head_weights, moments
from pfl_lightning.algorithms.parts.pairwise import dot
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.foundation.errors import require
from pfl_lightning.metrics.ledger import dense_bytes
from pfl_lightning.model.client import ClientModule
from pfl_lightning.tasks.task import Batch, Task


@dataclass
class FedPAC(FedRep):
    """FedRep whose body also learns λ·MSE(features, their class's global mean), and whose server gives each client the
    combination of the round's heads that minimises αᵀ(diag(V) + M_i)α, α ≥ 0, Σα = 1: a bound on its test error, with
    V_j the variance of client j's features and M_i the distances between class-wise feature means.

    Memory per rank: the head and the class means of each client that it trains in the round, and the k × k products.
    """

    head_epochs: int = 1
    """Epochs for the head at a visit, the body being frozen."""
    body_epochs: int = 5
    """Epochs for the body at a visit, the new head being frozen."""
    head_lr: float | None = 0.1
    """Learning rate for the head. null: the optimizer's."""
    align: float = 1.0
    """Strength λ of the pull of features to the class means; not in the first round, when there are none."""
    mix_heads: bool = True
    """Whether heads are combined. Without, and with align 0, this is FedRep."""
    least_weight: float = 1e-3
    """Smaller weights of other heads count as zero."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.head_lr is None or self.head_lr > 0, "head_lr", self.head_lr, "a number > 0, or null")
        require(self.align >= 0, "align", self.align, "a number >= 0")
        require(
            0 <= self.least_weight < 1, "least_weight", self.least_weight, "a number from 0 up to, not including, 1"
        )

    @override
    def check(self, task: Task, data: FederatedData) -> None:
        super().check(task, data)
        require_classifier(task, data, "FedPAC")
        require_head(task, data, "FedPAC")

    @override
    def init_server(self, client: ClientModule, server: Server) -> None:
        classes, size = linear_head(client).weight.shape
        server.memory["prototypes"] = torch.zeros(classes, size, device=server.vector.device)
        server.memory["known"] = torch.zeros(classes, dtype=torch.bool, device=server.vector.device)
        server.memory["in_head"] = self.in_head(client)

    @override
    def download(self, client: ClientModule, server: Server) -> None:
        super().download(client, server)
        if "head" in client.memory:
            client.vector[self.in_head(client)] = client.memory.pop("head")

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        classes = client.data.spec.num_classes
        z, y = features(client)
        before, counts = class_means(z, y, classes)
        client.memory["moments"], client.memory["variance"] = moments(z, y, classes)
        self.finetune(client, server, self.head_epochs)
        targets = torch.where(server.memory["known"][:, None], server.memory["prototypes"], before)
        aligned = self.align > 0 and bool(server.memory["known"].any())
        with client.freezing(self.head_modules(client.task)):
            loss = (lambda batch: self.loss(client, targets, batch)) if aligned else None
            client.train_epochs(self.body_epochs, loss=loss)
        client.memory["means"] = class_means(*features(client), classes)[0]
        client.memory["counts"] = counts

    def loss(self, client: ClientModule, targets: Tensor, batch: Batch) -> Tensor:
        """The task's loss and alignment, the mean square over samples and features, to `targets` [C, D]."""
        step = step_through(client.task, batch, "FedPAC")
        return step.loss + self.align * mse_loss(step.features, targets[batch[1]])

    @override
    def finetune(self, client: ClientModule, server: Server, epochs: int) -> None:
        with client.only(self.head_modules(client.task)):
            client.train_epochs(epochs, stream="head", lr=self.head_lr)

    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        upload = super().upload(client, server)
        upload.extra = {name: client.memory.pop(name) for name in ("moments", "variance", "means", "counts")}
        upload.extra["head"] = client.vector[self.in_head(client)]
        return upload

    @override
    def down_bytes(self, client: ClientModule, server: Server) -> int:
        more = server.memory["prototypes"].numel() + int(server.memory["in_head"].sum())
        return super().down_bytes(client, server) + dense_bytes(more)

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies | None:
        super().aggregate(server, uploads)
        update_prototypes(server, uploads)
        if not self.mix_heads:
            return None
        like = server.memory["prototypes"].double()
        products = uploads.pairwise("moments", "moments", like, dot)
        variances = uploads.table("variance", like[0, 0]).cpu()
        rows = {
            client: head_weights(row, products, variances, self.least_weight).to(like.device)
            for row, client in enumerate(uploads.cohort)
            if client in uploads.local  # each rank solves for its own clients
        }
        weights = uploads.gather_rows(rows, torch.zeros(len(uploads.cohort), dtype=torch.float64, device=like.device))
        mixtures = uploads.mix("head", weights, server.vector[server.memory["in_head"]])
        return ((client, Reply({"head": head})) for client, head in mixtures)


def update_prototypes(server: Server, uploads: Uploads) -> None:
    """The global class means: Σ n_ic mean_ic / Σ n_ic. A class that nobody had this time keeps its mean."""
    prototypes, k = server.memory["prototypes"], len(uploads.cohort)
    counts = uploads.table("counts", prototypes[:, 0]).double()  # [k, C]
    total = counts.sum(0)
    fraction = dict(zip(uploads.cohort, k * counts / total.clamp(min=1), strict=True))
    parts = {client: u.extra["means"] * fraction[client][:, None] for client, u in uploads.local.items()}
    means = uploads.combine(parts, prototypes, 1 / k)
    server.memory["prototypes"] = torch.where(total[:, None] > 0, means, prototypes)
    server.memory["known"] |= total > 0
