"""SoftMerge: FedOBP without the hard switch: the higher the score, the more a parameter is the client's own. Ours."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from pfl_lightning.algorithm import Server
from pfl_lightning.algorithms.fedobp import FedOBP
from pfl_lightning.foundation.errors import require
from pfl_lightning.model import masks
from pfl_lightning.model.client import ClientModule


@dataclass
class SoftMerge(FedOBP):
    """θ̃ = θ_g + w (θ_i − θ_g) with w = 1 − (τ/score)^sharpness above the threshold τ of the quantile, 0 up to it.

    With the score (θ_i − θ_g)², sharpness 1 is the non-negative garrote and 0.5 the soft threshold of shrinkage
    estimators. A large sharpness is FedOBP, quantile 1.0 is FedAvg. Beyond the paper, whose future work it names.
    """

    sharpness: float = 1.0
    """How fast a weight grows from 0 at the threshold to 1 far above it."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.sharpness > 0, "sharpness", self.sharpness, "a number above 0")

    @override
    def merge(self, client: ClientModule, server: Server, score: Tensor) -> None:
        super().merge(client, server, score)
        if self.normalization == "global":
            score = masks.min_max(score)
        personal = client.mask[: len(score)]
        if personal.any():
            above = score[personal]
            threshold = score[self.eligible(client) & ~personal].max()
            weight = 1 - (threshold / above).pow(self.sharpness)
            client.theta[personal] = torch.lerp(server.theta[personal], client.theta[personal], weight)
