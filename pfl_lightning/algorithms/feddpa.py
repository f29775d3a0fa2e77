"""FedDPA: parameters with much Fisher information stay personal. Yang, Huang and Ye, NeurIPS 2023."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from pfl_lightning.algorithm import Exchange, Server, Upload
from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.algorithms.parts import scores
from pfl_lightning.foundation.errors import require
from pfl_lightning.foundation.seeds import derive_seed
from pfl_lightning.model import masks
from pfl_lightning.model.client import ClientModule


@dataclass
class FedDPA(FedAvg):
    """A client scores the parameters of its own last model by their Fisher information, scaled to [0, 1] per tensor,
    keeps those above a threshold and takes the others from the server. Then it trains the personal ones, then the
    others, each with the rest fixed. It uploads everything, clipped and with noise where privacy is asked for.
    """

    threshold: float = 0.4
    """Parameters that score above it are personal. 1.0 keeps nothing, below 0 everything. With `selection: quantile`
    the share of each tensor that comes from the server."""
    selection: Literal["threshold", "quantile"] = "threshold"
    """threshold: the paper's. quantile: as the comparison in the FedOBP paper does it."""
    phases: Literal["two", "one"] = "two"
    """two: personal parameters, then the others, with their pulls. one: plain training of all, as the FedOBP paper's
    comparison does it."""
    fisher: Literal["sample", "batch"] = "sample"
    """Squared gradients of single samples, or, cheaper and coarser, of whole batches."""
    lam_personal: float = 0.1
    """Pull of the personal phase: λ/2 Σ ‖θ − w‖, the norms of the tensors, not squared."""
    lam_shared: float = 0.05
    """Of the other phase: λ/2 |Σ ‖θ − w‖ − clip_norm|, which also draws small updates up to that length."""
    clip_norm: float = 0.5
    """Length that the update is drawn to and, with `clip`, cut at."""
    clip: bool = False
    """Whether updates of the parameters are cut to `clip_norm`: part of differential privacy."""
    noise: float = 0.0
    """Noise multiplier σ: every entry of an update gets noise of deviation σ · clip_norm / √(number of clients)."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.selection in ("threshold", "quantile"), "selection", self.selection, "threshold or quantile")
        require(self.phases in ("two", "one"), "phases", self.phases, "two or one")
        require(self.fisher in ("sample", "batch"), "fisher", self.fisher, "sample or batch")
        if self.selection == "quantile":
            require(0 <= self.threshold <= 1, "threshold", self.threshold, "a number from 0 to 1 for a quantile")
        for key in ("lam_personal", "lam_shared", "noise"):
            require(getattr(self, key) >= 0, key, getattr(self, key), "a number >= 0")
        require(self.clip_norm > 0, "clip_norm", self.clip_norm, "a number > 0")
        require(self.clip or not self.noise, "noise", self.noise, "0, or clip: true with it")

    def select(self, score: Tensor, client: ClientModule) -> Tensor:
        """The personal parameters, bool [P], of scores [P]."""
        spans = client.layout.parameter_spans
        if self.selection == "threshold":
            return masks.min_max(score, spans) > self.threshold
        return torch.cat([masks.above_quantile(score[s.start : s.stop], self.threshold) for s in spans])

    @override
    def exchange(self, client: ClientModule) -> Exchange:
        return Exchange.of_everything(client, self.bn_buffers)

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        if self.phases == "one":
            client.train_epochs()
        else:
            self.train_in_turn(client, server)
        # the score depends on the trained model only, so the mask of the next visit is known already
        score = scores.OF_MODEL["fisher" if self.fisher == "sample" else "fisher_batch"](client)
        client.mask[: len(score)] = self.select(score, client)

    def train_in_turn(self, client: ClientModule, server: Server) -> None:
        """Train the personal parameters with the others fixed, then the others. A phase over none is skipped."""
        personal = client.mask[: client.layout.num_parameters].clone()
        if personal.any():
            client.train_epochs(
                on_gradient=lambda: draw(client, server.theta, self.lam_personal), entries=personal, stream="personal"
            )
        if not personal.all():
            client.train_epochs(
                on_gradient=lambda: draw(client, server.theta, self.lam_shared, self.clip_norm), entries=~personal
            )

    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        upload = super().upload(client, server)
        if self.clip:
            update = clipped(client.theta - server.theta, self.clip_norm)
            random = torch.Generator().manual_seed(derive_seed(client.seed, "privacy", client.round, client.id))
            deviation = self.noise * self.clip_norm / server.num_clients**0.5
            update += deviation * torch.randn(len(update), generator=random).to(update)
            upload.values["vector"][: len(update)] = server.theta + update
        return upload


def draw(client: ClientModule, anchor: Tensor, strength: float, length: float = 0.0) -> None:
    """Add the gradient of strength/2 |Σ ‖θ − anchor‖ − length|, norms of the tensors, to the client's gradient."""
    if not strength:
        return
    away = client.theta - anchor
    tensors = [away[span.start : span.stop] for span in client.layout.parameter_spans]
    norms = torch.stack([torch.linalg.norm(tensor) for tensor in tensors])
    sign = torch.sign(norms.sum() - length)
    for span, tensor, norm in zip(client.layout.parameter_spans, tensors, norms, strict=True):
        client.grad[span.start : span.stop] += strength / 2 * sign * tensor / norm.clamp(min=1e-30)


def clipped(update: Tensor, length: float) -> Tensor:
    """The update, shortened to `length` if it is longer."""
    shortened: Tensor = update * (length / torch.linalg.norm(update).clamp(min=length))
    return shortened
