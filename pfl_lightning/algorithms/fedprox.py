"""FedProx: FedAvg with a pull towards the received model. Li et al., MLSys 2020."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from pfl_lightning.algorithm import Server
from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.foundation.errors import require
from pfl_lightning.model.client import ClientModule


@dataclass
class FedProx(FedAvg):
    """Local objective f(θ) + μ/2 ‖θ − w‖², w being the model as received. μ = 0 is FedAvg."""

    mu: float = 0.01
    """Strength of the pull, added to the gradient before momentum and weight decay."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.mu >= 0, "mu", self.mu, "a number >= 0")

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        client.train_epochs(on_gradient=lambda: pull(client, server.theta, self.mu))


def pull(client: ClientModule, anchor: Tensor, strength: float) -> None:
    """Add the gradient of strength/2 ‖θ − anchor‖² to the client's gradient. `anchor` is [P]."""
    client.grad.add_(client.theta - anchor, alpha=strength)
