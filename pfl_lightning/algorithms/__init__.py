"""The methods, one file each. Every one is found in YAML by its class name."""

from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.algorithms.fedobp import FedOBP
from pfl_lightning.algorithms.fedprox import FedProx
from pfl_lightning.algorithms.local import Local

__all__ = ["FedAvg", "FedOBP", "FedProx", "Local"]
