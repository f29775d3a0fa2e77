"""FLUTE: for models too small for all clients. Client and server shape the heads. Liu, Shen and Yang, ICML 2024."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from pfl_lightning.algorithm import Replies, Reply, Server, Upload, Uploads
from pfl_lightning.algorithms.fedper import FedPer
from pfl_lightning.algorithms.parts.features import linear_head, require_classifier, require_head, step_through
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.foundation.errors import require
from pfl_lightning.metrics import ledger
from pfl_lightning.model.client import ClientModule
from pfl_lightning.tasks.task import Batch, Task


@dataclass
class FLUTE(FedPer):
    """FedPer with the regulariser R(H) = ‖HHᵀ/‖HHᵀ‖ − T‖ on the head's weight H, T being the simplex that the
    classifiers of a well-trained model form, restricted to the classes the client has. First the head learns alone,
    then both (`loop.local_epochs`). The server takes one more step on R for each head and sends it back.
    """

    head_epochs: int = 9
    """Epochs for the head at a visit, before body and head are trained together."""
    simplex: float = 0.25
    """Weight of R in local training."""
    head_decay: float = 0.0025
    """Weight of ‖H‖² in local training."""
    feature_decay: float = 0.0005
    """Weight of the squared features, summed over the batch, when the body is trained too."""
    server_lr: float = 0.5
    """Step of the server on the mean of R over the round's heads. 0: heads stay at the clients."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.head is None, "head", self.head, "null: FLUTE's head is the net's")
        for key in ("head_epochs", "simplex", "head_decay", "feature_decay", "server_lr"):
            require(getattr(self, key) >= 0, key, getattr(self, key), "a number >= 0")

    @override
    def check(self, task: Task, data: FederatedData) -> None:
        require_classifier(task, data, "FLUTE")
        require_head(task, data, "FLUTE")
        require(data.spec.num_classes >= 2, "data", data.spec.num_classes, "data with two classes or more")

    @override
    def download(self, client: ClientModule, server: Server) -> None:
        super().download(client, server)
        if "weight" in client.memory:
            linear_head(client).weight.data.copy_(client.memory.pop("weight"))

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        target = simplex_target(self.classes(client))
        with client.only([client.task.head]):
            client.train_epochs(self.head_epochs, lambda batch: self.loss(client, target, batch, 0.0), stream="head")
        client.train_epochs(loss=lambda batch: self.loss(client, target, batch, self.feature_decay))

    def classes(self, client: ClientModule) -> Tensor:
        """Which classes the client has in its training data, bool [C]."""
        _, y = client.data.batch(client.train_indices, client.vector.device)
        return torch.bincount(y, minlength=client.data.spec.num_classes) > 0

    def loss(self, client: ClientModule, target: Tensor, batch: Batch, feature_decay: float) -> Tensor:
        """The task's loss and the regularisers."""
        head = linear_head(client)
        value, z, _ = step_through(client.task, batch, "FLUTE")
        if self.simplex:
            value = value + self.simplex * simplex_deviation(head.weight, target)
        if self.head_decay:
            value = value + self.head_decay * head.weight.square().sum()
        return value + feature_decay * z.square().sum() if feature_decay else value

    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        upload = super().upload(client, server)
        if self.server_lr:
            upload.extra = {"weight": linear_head(client).weight.detach().clone(), "classes": self.classes(client)}
        return upload

    @override
    def down_bytes(self, client: ClientModule, server: Server) -> int:
        weight = linear_head(client).weight.numel() if self.server_lr else 0
        return super().down_bytes(client, server) + ledger.dense_bytes(weight)

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies | None:
        super().aggregate(server, uploads)
        if not self.server_lr:
            return None
        lr = self.server_lr / len(uploads.cohort)
        return ((client, Reply({"weight": server_step(upload.extra, lr)})) for client, upload in uploads.local.items())


def server_step(head: Mapping[str, Tensor], lr: float) -> Tensor:
    """The weight of an uploaded head after the server's step on R."""
    return step(head["weight"], simplex_target(head["classes"]), lr)


def simplex_target(classes: Tensor) -> Tensor:
    """T [C, C] for a client with these classes, bool [C]: (I − 11ᵀ/C) / √(C − 1) where it has both, else 0."""
    count, has = len(classes), classes.float()
    return (torch.eye(count, device=has.device) - 1 / count) * has.outer(has) / math.sqrt(count - 1)


def simplex_deviation(weight: Tensor, target: Tensor) -> Tensor:
    """R(H) = ‖HHᵀ/‖HHᵀ‖ − T‖, the norm itself and not its square."""
    gram = weight @ weight.T
    value: Tensor = torch.linalg.norm(gram / (torch.linalg.norm(gram) + 1e-12) - target)
    return value


def step(weight: Tensor, target: Tensor, lr: float) -> Tensor:
    """The head's weight after one gradient step on R."""
    moved = weight.clone().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(simplex_deviation(moved, target), moved)
    return weight - lr * gradient
