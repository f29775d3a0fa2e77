"""FedAvg: everybody trains the global model, the server averages. McMahan et al., AISTATS 2017."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pfl_lightning.algorithm import Algorithm
from pfl_lightning.foundation.errors import require


@dataclass
class FedAvg(Algorithm):
    """One global model for all clients. Every other algorithm differs from it by a few steps."""

    weighting: Literal["samples", "uniform"] = "samples"
    """Weight of a client in the mean: its number of training samples, or the same for all."""
    bn_buffers: Literal["average", "local"] = "average"
    """BatchNorm's running statistics: averaged like parameters, or kept by each client."""

    def __post_init__(self) -> None:
        """Check the settings. Subclasses that check their own call this one too."""
        require(self.weighting in ("samples", "uniform"), "weighting", self.weighting, "samples or uniform")
        require(self.bn_buffers in ("average", "local"), "bn_buffers", self.bn_buffers, "average or local")
