"""Ditto: FedAvg plus a personal model pulled towards the global one. Li et al., ICML 2021."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from pfl_lightning.algorithm import Server
from pfl_lightning.algorithms.fedprox import pull
from pfl_lightning.algorithms.parts.two_models import TwoModels
from pfl_lightning.foundation.errors import require
from pfl_lightning.model.client import ClientModule


@dataclass
class Ditto(TwoModels):
    """The personal model v minimises f(v) + λ/2 ‖v − w‖², with w the received model. The two never mix. v is tested.

    λ = 0 with `first_visit: initial` is Local. The global model is FedAvg's for any λ.
    """

    lam: float = 1.0
    """Strength λ of the pull."""
    personal_epochs: int | None = None
    """Epochs for the own model at a visit. `loop.local_epochs` by default."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.lam >= 0, "lam", self.lam, "a number >= 0")
        require((self.personal_epochs or 0) >= 0, "personal_epochs", self.personal_epochs, "a whole number >= 0")

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        shared = self.received(client, server)
        with client.fork_rng(), client.swap_in(shared):
            client.train_epochs()
        client.memory["shared"] = shared
        client.train_epochs(self.personal_epochs, on_gradient=lambda: pull(client, server.theta, self.lam))
