"""The methods, one file each. Every one is found in YAML by its class name."""

from pfl_lightning.algorithms.adaptivequantile import AdaptiveQuantile
from pfl_lightning.algorithms.apfl import APFL
from pfl_lightning.algorithms.ditto import Ditto
from pfl_lightning.algorithms.fedala import FedALA
from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.algorithms.fedbabu import FedBABU
from pfl_lightning.algorithms.fedbn import FedBN
from pfl_lightning.algorithms.fedcac import FedCAC
from pfl_lightning.algorithms.fedobp import FedOBP
from pfl_lightning.algorithms.fedper import FedPer
from pfl_lightning.algorithms.fedprox import FedProx
from pfl_lightning.algorithms.fedpurin import FedPURIN
from pfl_lightning.algorithms.fedrep import FedRep
from pfl_lightning.algorithms.fedselect import FedSelect
from pfl_lightning.algorithms.lgfedavg import LGFedAvg
from pfl_lightning.algorithms.local import Local
from pfl_lightning.algorithms.lpproj import LpProj
from pfl_lightning.algorithms.pfedme import PFedMe
from pfl_lightning.algorithms.pfedsop import pFedSOP
from pfl_lightning.algorithms.softmerge import SoftMerge

__all__ = [
    "APFL",
    "AdaptiveQuantile",
    "Ditto",
    "FedALA",
    "FedAvg",
    "FedBABU",
    "FedBN",
    "FedCAC",
    "FedOBP",
    "FedPURIN",
    "FedPer",
    "FedProx",
    "FedRep",
    "FedSelect",
    "LGFedAvg",
    "Local",
    "LpProj",
    "PFedMe",
    "SoftMerge",
    "pFedSOP",
]
