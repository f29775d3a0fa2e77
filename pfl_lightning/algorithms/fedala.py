"""FedALA: before training, learn how to mix one's old head with the new global one. Zhang et al., AAAI 2023."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import pstdev

import torch
from torch import Tensor
from typing_extensions import override

from pfl_lightning.algorithm import Exchange, Server
from pfl_lightning.algorithms.parts.split import Split
from pfl_lightning.foundation.errors import require
from pfl_lightning.model import masks
from pfl_lightning.model.client import ClientModule

WINDOW = 10


@dataclass
class FedALA(Split):
    """Each parameter of the head (`head`: the top layers) becomes θ_i + (w − θ_i) W: θ_i is the client's model after
    its last training, W in [0, 1] is learned, entry by entry, on the client's data. All the rest, and BatchNorm
    statistics, come from the server. Everything is trained, uploaded and averaged.

    A client without a model of its own takes the server's. `eta` = 0 is FedAvg.
    """

    eta: float = 1.0
    """Learning rate of W."""
    share: float = 0.8
    """Share of the training samples that W learns from at a visit."""
    threshold: float = 0.1
    """A client's first W is learned until the last ten epochs' losses deviate less; later ones for one epoch."""
    max_epochs: int = 100
    """The first W gets no more epochs than this."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.eta >= 0, "eta", self.eta, "a number >= 0")
        require(0 < self.share <= 1, "share", self.share, "a number above 0 and up to 1")
        require(self.threshold >= 0, "threshold", self.threshold, "a number >= 0")
        require(self.max_epochs >= 1, "max_epochs", self.max_epochs, "a whole number >= 1")

    @override
    def exchange(self, client: ClientModule) -> Exchange:
        return Exchange.of_everything(client, self.bn_buffers)

    @override
    def setup(self, client: ClientModule, server: Server) -> None:
        super().setup(client, server)
        client.mask[: client.layout.num_parameters] |= self.in_head(client)[: client.layout.num_parameters]

    @override
    def download(self, client: ClientModule, server: Server) -> None:
        super().download(client, server)
        if not client.visits:
            client.theta.copy_(server.theta)
            return
        buffers = client.vector[client.layout.num_parameters :]
        received = buffers.clone()
        with client.fork_rng(), client.only(self.head_modules(client.task)):
            self.mix(client, server.theta)
        buffers.copy_(received)

    def mix(self, client: ClientModule, theta: Tensor) -> None:
        """Learn W and mix the head of the live model, which is the client's own, with the head of `theta` [P]."""
        head = masks.indices(self.in_head(client)[: len(theta)])
        own, received = client.theta[head], theta[head]
        epochs = 1 if "weights" in client.memory else self.max_epochs
        weights = client.memory.setdefault("weights", torch.ones_like(own))
        client.theta[head] = torch.lerp(own, received, weights)  # exactly the received value where W is 1
        if not client.num_samples or not len(own):
            return
        client.start_training()
        losses: list[float] = []
        while len(losses) < epochs and (len(losses) <= WINDOW or pstdev(losses[-WINDOW:]) >= self.threshold):
            for batch in client.batches("mix", self.share):
                loss = client.compute_gradient(batch)
                weights.sub_(client.grad[head] * (received - own), alpha=self.eta).clamp_(0, 1)
                client.theta[head] = torch.lerp(own, received, weights)
            losses.append(float(loss))
