"""FedProx FT as the pFedSOP paper defines it: fine-tune the received model, test it, and train on from there."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_lightning.algorithms.fedavgft import FedAvgFT
from pfl_lightning.algorithms.fedprox import FedProx


@dataclass
class FedProxFT(FedAvgFT, FedProx):
    """FedAvgFT with FedProx's local training, which is pulled to the model as received. Fine-tuning has no pull."""
