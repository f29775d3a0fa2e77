"""pFedMe: the global model follows clients' proximal ones (Moreau envelopes). T. Dinh, Tran, Nguyen, NeurIPS 2020."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from pfl_lightning.algorithm import Replies, Server, Uploads
from pfl_lightning.algorithms.fedprox import pull
from pfl_lightning.algorithms.parts.two_models import TwoModels
from pfl_lightning.foundation.errors import require
from pfl_lightning.model.client import ClientModule


@dataclass
class PFedMe(TwoModels):
    """With each of R batches, K steps bring θ nearer to argmin f(θ) + λ/2 ‖θ − w_i‖², then w_i moves a little to θ.

    w_i is uploaded, θ is the client's own model and is tested. Steps are plain gradient steps with the rates given
    here: the task's optimizer has no part in them. One never drawn is tested with the θ it would find now.

    The defaults are the authors' for MNIST with batches of 20. Other nets and data may diverge with them: lower
    `personal_lr` first (configs/pfedme_fashion10k.yaml has rates for the CNN).

    lr · lam = 1, inner_steps = 1, mu = 0, beta = 1 is FedAvg with plain steps of `personal_lr`.
    """

    lam: float = 15.0
    """Strength λ of the pull to w_i."""
    lr: float = 0.005
    """Rate η of w_i: it goes the share lr · lam of the way to θ after each batch."""
    personal_lr: float = 0.1
    """Rate η_p of θ. Keep personal_lr · lam well below 2."""
    inner_steps: int = 5
    """K: steps of θ with the same batch."""
    outer_steps: int | None = 20
    """R: batches at a visit. null: all those of `loop.local_epochs`."""
    mu: float = 0.001
    """Weight decay of θ."""
    beta: float = 1.0
    """How far the server goes to the mean. Above 1 it goes beyond. BatchNorm statistics always become the mean."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("lam", "lr", "mu"):
            require(getattr(self, key) >= 0, key, getattr(self, key), "a number >= 0")
        for key in ("personal_lr", "beta"):
            require(getattr(self, key) > 0, key, getattr(self, key), "a number above 0")
        require(self.lr * self.lam <= 1, "lr", self.lr, f"at most 1/lam = {1 / max(self.lam, 1e-12):.4g}")
        require(self.inner_steps >= 1, "inner_steps", self.inner_steps, "a whole number >= 1")
        require((self.outer_steps or 0) >= 0, "outer_steps", self.outer_steps, "a whole number >= 0, or null")

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        client.memory["shared"] = self.descend(client, server)

    @override
    def personalize(self, client: ClientModule, server: Server) -> None:
        if not client.visits:
            self.descend(client, server)

    def descend(self, client: ClientModule, server: Server) -> Tensor:
        """Both sequences from the received model on: leaves θ in the live model and returns w_i [S]."""
        client.vector.copy_(server.vector)
        client.start_training()
        anchor = server.theta.clone()
        for batch in client.iter_batches(steps=self.outer_steps):
            for _ in range(self.inner_steps):
                loss = client.compute_gradient(batch)
                pull(client, anchor, self.lam)
                client.grad.add_(client.theta, alpha=self.mu)
                client.theta.sub_(client.grad, alpha=self.personal_lr)
                client.record_step(loss, batch)
            anchor.lerp_(client.theta, self.lr * self.lam)
        return torch.cat([anchor, client.vector[len(anchor) :]])

    @override
    def aggregate(self, server: Server, uploads: Uploads) -> Replies | None:
        before = server.theta.clone()
        super().aggregate(server, uploads)
        server.theta.copy_(torch.lerp(before, server.theta, self.beta))
        return None
