"""FedOBP: keep the few parameters whose change matters most (optimal brain personalization). FedOBP paper, Eq. 19."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from typing_extensions import override

from pfl_lightning.algorithm import Exchange, Server, Upload
from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.algorithms.parts import scores
from pfl_lightning.foundation.errors import require
from pfl_lightning.model import masks
from pfl_lightning.model.client import ClientModule


@dataclass
class FedOBP(FedAvg):
    """A client scores each parameter by (θ_i − θ_g)², θ_i its own model after its last training, θ_g the one just
    received, and keeps those strictly above a quantile. It uploads everything. The server averages everything.
    """

    quantile: float = 0.9999
    """Share of parameters taken from the server. 1.0 is FedAvg."""
    score: scores.ScoreName = "obp"
    """The score that makes a parameter personal: obp (Eq. 19), obp_legacy (as in the paper's Table 8), gradient (Eq.
    5), fisher (mean squared gradient of single samples), fisher_literal (Eq. 6 as printed: the squared gradient of the
    mean loss), fisher_batch (mean squared gradient of batches: between the two) or perturbation (FedPURIN's |g·θ|, last
    batch). Gradient and perturbation exist only once a client has trained."""
    ema: float = 0.0
    """Weight of a client's earlier scores in a moving average over its visits. 0.0 takes the newest alone."""
    normalization: Literal["none", "layer", "global"] = "none"
    """Min-max scaling of the scores per tensor, or over all. Over all, it does not change which scores are above the
    quantile, so the selection uses the scores as they are. Only SoftMerge's weights change."""
    scope: Literal["all", "classifier"] = "all"
    """Score and select among all parameters, or inside the classifier (the net's head) only."""
    first_visit: Literal["global", "initial"] = "global"
    """At a client's first visit: nothing is personal, or the common initial model counts as its previous model."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.quantile <= 1, "quantile", self.quantile, "a number from 0 to 1")
        require(0 <= self.ema < 1, "ema", self.ema, "a number from 0 up to, not including, 1")
        choices = {
            "score": get_args(scores.ScoreName),
            "normalization": ("none", "layer", "global"),
            "scope": ("all", "classifier"),
            "first_visit": ("global", "initial"),
        }
        for key, allowed in choices.items():
            require(getattr(self, key) in allowed, key, getattr(self, key), " | ".join(allowed))

    @override
    def exchange(self, client: ClientModule) -> Exchange:
        return Exchange.of_everything(client, self.bn_buffers)

    @override
    def setup(self, client: ClientModule, server: Server) -> None:
        super().setup(client, server)
        if self.first_visit == "initial":
            client.memory["theta"] = client.theta.clone()
            if self.score in scores.OF_MODEL:
                client.memory["score"] = scores.OF_MODEL[self.score](client)

    @override
    def download(self, client: ClientModule, server: Server) -> None:
        score = self.latest_score(client, server)
        if score is not None:
            if self.normalization == "layer":
                score = masks.min_max(score, client.layout.parameter_spans)
            self.merge(client, server, score)
        super().download(client, server)

    def latest_score(self, client: ClientModule, server: Server) -> Tensor | None:
        """The client's scores [P] as the global model arrives. None while there are none."""
        if self.score not in scores.OF_DIFFERENCE:
            return client.memory.get("score")
        if "theta" not in client.memory:
            return None
        score = self._averaged(client, scores.OF_DIFFERENCE[self.score](client.memory["theta"], server.theta))
        if self.ema:
            client.memory["score"] = score
        return score

    def merge(self, client: ClientModule, server: Server, score: Tensor) -> None:
        """Set the mask and put the client's own values under it, given the normalised score [P]."""
        chosen = self.select(client, score, self.quantile)
        client.mask[: len(score)] = chosen
        masks.put(client.theta, chosen, client.memory["theta"])

    def select(self, client: ClientModule, score: Tensor, quantile: float) -> Tensor:
        """The personal parameters, bool [P]."""
        if self.scope == "all":
            return masks.above_quantile(score, quantile)
        inside = self.eligible(client)
        return inside.masked_scatter(inside, masks.above_quantile(score[inside], quantile))

    def eligible(self, client: ClientModule) -> Tensor:
        """The parameters that may become personal, bool [P]."""
        if self.scope == "all":
            return torch.ones_like(client.theta, dtype=torch.bool)
        return masks.by_module(client.task, client.layout, client.task.head)[: client.layout.num_parameters]

    @override
    def fit(self, client: ClientModule, server: Server) -> None:
        start = client.theta.clone()
        client.grad.zero_()  # a visit without a single batch must not find the gradient of another client
        super().fit(client, server)
        client.memory["theta"] = client.theta.clone()
        if self.score not in scores.OF_DIFFERENCE:
            client.memory["score"] = self._averaged(client, self._score_of_training(client, start))

    @override
    def upload(self, client: ClientModule, server: Server) -> Upload:
        upload = super().upload(client, server)
        # the next visit makes a new mask and finds the values in memory, so the state needs neither
        client.mask[: client.layout.num_parameters] = False
        return upload

    def _score_of_training(self, client: ClientModule, start: Tensor) -> Tensor:
        """The scores that need no received model: made right after the training, used at the next visit."""
        if self.score == "gradient":
            return scores.gradient(start, client.theta)
        if self.score == "perturbation":
            return scores.perturbation(client.theta, client.grad)
        return scores.OF_MODEL[self.score](client)

    def _averaged(self, client: ClientModule, score: Tensor) -> Tensor:
        return torch.lerp(score, client.memory["score"], self.ema) if "score" in client.memory and self.ema else score
