"""pFedSOP: one second-order step along a mix of own and global update, then local SGD. Sen, Krishna Mohan, 2025."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.optim import SGD
from typing_extensions import override

from pfl_lightning.algorithm import Server, Upload, Uploads
from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.foundation.errors import ConfigError, require
from pfl_lightning.metrics import ledger
from pfl_lightning.model.client import ClientModule
from pfl_lightning.tasks.task import Task


@dataclass
class PFedSOP(FedAvg):
    """Every client has a model of its own. Only updates Δ = (x⁰ − x^T)/η₂ travel, and the server keeps their mean.

    A returning client mixes its latest update with the global one, Δ_p = (1 − β) Δ_i + β Δ, where β grows as the angle
    between them shrinks, and starts from x − η₁ Δ_p / (ρ + ‖Δ_p‖²). η₂ is the learning rate of the task's optimizer.
    """

    lam: float = 1.0
    """λ, how steeply the weight of the global update falls with the angle."""
    rho: float = 1.0
    """ρ, added to the diagonal of the Fisher matrix Δ_p Δ_pᵀ."""
    eta1: float | None = 0.01
    """η₁, length of the second-order step. 0.0 is local training, null the optimizer's learning rate (η₁ = η₂)."""
    carry: Literal["trained", "personalized"] = "trained"
    """The model a client takes to its next visit: after its local training, or before it (the paper's text)."""
    personalization: bool = True
    """Whether β depends on the angle. False takes the global update alone (β = 1)."""
    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client's update in the mean: the same for all, or its number of training samples."""
    bn_buffers: Literal["average", "local"] = "local"
    """BatchNorm's running statistics belong to the client's own model."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.lam > 0, "lam", self.lam, "a number above 0")
        require(self.rho > 0, "rho", self.rho, "a number above 0")
        require(self.eta1 is None or self.eta1 >= 0, "eta1", self.eta1, "a number >= 0")
        require(self.carry in ("trained", "personalized"), "carry", self.carry, "trained or personalized")
        require(self.bn_buffers == "local", "bn_buffers", self.bn_buffers, "local: there is no global model")

    @override
    def check(self, task: Task, data: FederatedData) -> None:
        if data.samples.y.is_floating_point():
            raise ConfigError(
                f"algorithm: pFedSOP needs a classification task, whose loss is a log-likelihood; the targets of "
                f"{data.name} are real numbers"
            )
        made = task.optimization()
        plain = isinstance(made.optimizer, SGD) and not any(g["momentum"] for g in made.optimizer.param_groups)
        if not plain or made.schedules:
            raise ConfigError(
                "task.optimizer: pFedSOP needs SGD without momentum and without a scheduler, because its Δ is the sum "
                "of the local gradients"
            )

    @override
    def setup(self, client: ClientModule, server: Server) -> None:
        client.mask.fill_(True)

    @override
    def download(self, client: ClientModule, server: Server) -> None:
        own, shared = client.memory.get("update"), server.memory.get("update")
        if own is None or shared is None or not own.any() or not shared.any():
            return  # no update yet: a new client stays at the common initial model
        beta = gompertz(angle(own, shared), self.lam) if self.personalization else 1.0
        eta1 = client.learning_rate if self.eta1 is None else self.eta1
        client.theta.sub_(fisher_step(torch.lerp(own, shared, beta), self.rho), alpha=eta1)

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        start = client.theta.clone()
        super().fit(client, server)
        client.memory["update"] = (start - client.theta).div_(client.learning_rate)
        if self.carry == "personalized":
            client.memory["start"] = start

    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        if self.carry == "personalized":  # the trained model has been tested by now. Its BatchNorm statistics stay
            client.theta.copy_(client.memory.pop("start"))
        return Upload(client.id, {"update": client.memory["update"]}, client.weight)

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> None:
        current = server.memory.get("update", torch.zeros_like(server.theta))
        server.memory.update(uploads.mean({"update": current}))

    @override
    def down_bytes(self, client: ClientModule, server: Server) -> int:
        """The global update, for clients that have one of their own to mix it with."""
        return ledger.dense_bytes(server.layout.num_parameters) if client.visits else 0


def angle(a: Tensor, b: Tensor) -> float:
    """The angle between two vectors other than zero, in radians. Rounding cannot take its cosine out of [−1, 1]."""
    a, b = a.double(), b.double()  # float32 would be off by 2e-4 where the vectors agree
    cosine = (a * b).sum() / (torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b))
    return math.acos(min(1.0, max(-1.0, float(cosine))))


def gompertz(theta: float, lam: float) -> float:
    """Eq. 14: β = 1 − exp(−exp(−λ(θ − 1))), the weight of the global update at the angle θ."""
    return -math.expm1(-math.exp(min(-lam * (theta - 1), 100.0)))


def fisher_step(update: Tensor, rho: float) -> Tensor:
    """(ΔΔᵀ + ρI)⁻¹ Δ = Δ / (ρ + ‖Δ‖²). The Sherman-Morrison form of Eq. 18 is the same but cancels digits."""
    return update / (rho + float(torch.linalg.vector_norm(update, dtype=torch.float64)) ** 2)
