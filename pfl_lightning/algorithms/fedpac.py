"""FedPAC: features are drawn to common class means, heads combined for each client. Xu, Tong and Huang, ICLR 2023."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss
from typing_extensions import override

from pfl_lightning.algorithm import Replies, Server
from pfl_lightning.algorithms.features import class_means, features, linear_head, require_classifier
from pfl_lightning.algorithms.fedrep import FedRep
from pfl_lightning.algorithms.headweights import head_weights, moments
from pfl_lightning.algorithms.pairwise import dot, pairwise
from pfl_lightning.client import ClientModule
from pfl_lightning.comm import Comm
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.errors import require
from pfl_lightning.exact_mean import Upload
from pfl_lightning.ledger import dense_bytes
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
    """Learning rate for the head; null: the optimizer's."""
    align: float = 1.0
    """Strength λ of the pull of features to the class means; not in the first round, when there are none."""
    mix_heads: bool = True
    """Whether heads are combined; without, and with align 0, this is FedRep."""
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
        require_classifier(task, "FedPAC")

    @override
    def begin(self, client: ClientModule, server: Server) -> None:
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
        """Cross-entropy and alignment, the mean square over samples and features, to `targets` [C, D]."""
        x, y = batch
        z = client.task.net.body(x)
        return cross_entropy(client.task.net.head(z), y) + self.align * mse_loss(z, targets[y])

    @override
    def finetune(self, client: ClientModule, server: Server, epochs: int) -> None:
        with client.only(self.head_modules(client.task)):
            client.train_epochs(epochs, stream="head", lr=self.head_lr)

    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        upload = super().upload(client, server)
        upload.values["head"] = client.vector[self.in_head(client)]
        upload.values |= {name: client.memory.pop(name) for name in ("moments", "variance", "means", "counts")}
        return upload

    @override
    def down_bytes(self, client: ClientModule, server: Server) -> int:
        more = server.memory["prototypes"].numel() + int(server.memory["in_head"].sum())
        return super().down_bytes(client, server) + dense_bytes(more)

    @override
    def aggregate(self, server: Server, uploads: Iterator[Upload], comm: Comm) -> Replies | None:
        mine = list(uploads)
        super().aggregate(server, iter(mine), comm)
        update_prototypes(server, mine, comm)
        if not self.mix_heads:
            return None
        like = server.memory["prototypes"].double()
        local = {upload.client: upload.values["moments"] for upload in mine}
        products = pairwise(local, local, like, dot, comm)
        variances = comm.table({upload.client: upload.values["variance"] for upload in mine}, like[0, 0]).cpu()
        rows = {
            client: head_weights(comm.cohort.index(client), products, variances, self.least_weight).to(like.device)
            for client in local
        }
        weights = comm.table(rows, torch.zeros(len(comm.cohort), dtype=torch.float64, device=like.device))
        heads = {upload.client: upload.values["head"] for upload in mine}
        mixed = comm.mix(heads, weights, server.vector[server.memory["in_head"]])
        return {client: {"head": head} for client, head in mixed.items()}


def update_prototypes(server: Server, mine: list[Upload], comm: Comm) -> None:
    """The global class means: Σ n_ic mean_ic / Σ n_ic. A class that nobody had this time keeps its mean."""
    prototypes, k = server.memory["prototypes"], len(comm.cohort)
    like = prototypes[:, 0].double()
    counts = comm.table({upload.client: upload.values["counts"].double() for upload in mine}, like)  # [k, C]
    total = counts.sum(0)
    share = k * counts / total.clamp(min=1)
    parts = (
        Upload(u.client, {"means": u.values["means"] * share[comm.cohort.index(u.client)][:, None]}, 1 / k)
        for u in mine
    )
    means = comm.mean(parts, {"means": prototypes})["means"]
    server.memory["prototypes"] = torch.where(total[:, None] > 0, means, prototypes)
    server.memory["known"] |= total > 0
