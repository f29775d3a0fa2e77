"""APFL: a learned mixture of a personal and the global model. Deng et al., arXiv 2003.13461, 2020."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from typing_extensions import override

from pfl_lightning.algorithm import Server, Upload
from pfl_lightning.algorithms.parts.two_models import TwoModels
from pfl_lightning.foundation.errors import require
from pfl_lightning.model.client import ClientModule


@dataclass
class APFL(TwoModels):
    """The tested model is v̄ = α v + (1 − α) w_i: v is the client's own, w_i its copy of the global model, trained as in
    FedAvg. v follows the gradient of f(v̄), and so does α. Outside its training a client mixes with the present w.

    α = 0 or 1, not adapted, is FedAvg or Local (`first_visit: initial`) with personal BatchNorm statistics.
    """

    alpha: float = 0.5
    """The share α of the own model that a client starts with."""
    alpha_lr: float | None = None
    """Learning rate of α. By default the model's, 0 keeps α fixed."""
    alpha_every: Literal["visit", "step"] = "visit"
    """Move α at the first step of a visit only, or at every step."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.alpha <= 1, "alpha", self.alpha, "a number from 0 to 1")
        require((self.alpha_lr or 0) >= 0, "alpha_lr", self.alpha_lr, "a number >= 0, or null")
        require(self.alpha_every in ("visit", "step"), "alpha_every", self.alpha_every, "visit or step")

    @override
    def setup(self, client: ClientModule, server: Server) -> None:
        super().setup(client, server)
        client.memory["alpha"] = torch.full((), self.alpha, dtype=torch.float64, device=client.vector.device)

    @override
    def download(self, client: ClientModule, server: Server) -> None:
        client.memory["own"] = client.theta.clone()
        client.theta.copy_(torch.lerp(server.theta, client.theta, client.memory["alpha"].to(server.theta)))

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        own, shared, alpha = client.memory["own"], server.vector.clone(), client.memory["alpha"]
        theta = shared[: len(own)]
        alpha_lr = client.learning_rate if self.alpha_lr is None else self.alpha_lr
        own_optimizer, shared_optimizer = client.fresh_optimizer(), client.fresh_optimizer()
        client.start_training()
        for step, batch in enumerate(client.iter_batches()):
            with client.fork_rng():
                client.record_step(client.compute_gradient(batch), batch)
            slope = client.grad.clone()  # of f at v̄. All gradients are those at the old values
            towards_own = torch.dot(own - theta, slope).double()
            with client.swap_in(shared):
                client.record_step(client.compute_gradient(batch), batch)
                shared_optimizer.step()
            client.theta.copy_(own)
            client.grad.copy_(slope.mul_(alpha.to(slope)))
            own_optimizer.step()
            own.copy_(client.theta)
            if self.alpha_every == "step" or step == 0:
                alpha = (alpha - alpha_lr * towards_own).clamp(0.0, 1.0)
            client.theta.copy_(torch.lerp(theta, own, alpha.to(theta)))
        client.memory |= {"shared": shared, "alpha": alpha}

    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        client.theta.copy_(client.memory.pop("own"))
        return super().upload(client, server)
