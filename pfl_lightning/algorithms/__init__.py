"""The methods, one file each. Every one is found in YAML by its class name."""

from pfl_lightning.algorithms.adaptivequantile import AdaptiveQuantile
from pfl_lightning.algorithms.apfl import APFL
from pfl_lightning.algorithms.cfl import CFL
from pfl_lightning.algorithms.ditto import Ditto
from pfl_lightning.algorithms.fedala import FedALA
from pfl_lightning.algorithms.fedavg import FedAvg
from pfl_lightning.algorithms.fedavgft import FedAvgFT
from pfl_lightning.algorithms.fedbabu import FedBABU
from pfl_lightning.algorithms.fedbn import FedBN
from pfl_lightning.algorithms.fedcac import FedCAC
from pfl_lightning.algorithms.feddpa import FedDPA
from pfl_lightning.algorithms.feddwa import FedDWA
from pfl_lightning.algorithms.fedobp import FedOBP
from pfl_lightning.algorithms.fedpac import FedPAC
from pfl_lightning.algorithms.fedper import FedPer
from pfl_lightning.algorithms.fedprox import FedProx
from pfl_lightning.algorithms.fedproxft import FedProxFT
from pfl_lightning.algorithms.fedpurin import FedPURIN
from pfl_lightning.algorithms.fedrep import FedRep
from pfl_lightning.algorithms.fedselect import FedSelect
from pfl_lightning.algorithms.floco import Floco
from pfl_lightning.algorithms.flocoplus import FlocoPlus
from pfl_lightning.algorithms.flute import FLUTE
from pfl_lightning.algorithms.knnper import KNNPer
from pfl_lightning.algorithms.learn2pfed import Learn2pFed
from pfl_lightning.algorithms.lgfedavg import LGFedAvg
from pfl_lightning.algorithms.local import Local
from pfl_lightning.algorithms.lpproj import LpProj
from pfl_lightning.algorithms.pfedfda import PFedFDA
from pfl_lightning.algorithms.pfedme import PFedMe
from pfl_lightning.algorithms.pfedsd import PFedSD
from pfl_lightning.algorithms.pfedsop import PFedSOP
from pfl_lightning.algorithms.softmerge import SoftMerge

__all__ = [
    "APFL",
    "CFL",
    "FLUTE",
    "AdaptiveQuantile",
    "Ditto",
    "FedALA",
    "FedAvg",
    "FedAvgFT",
    "FedBABU",
    "FedBN",
    "FedCAC",
    "FedDPA",
    "FedDWA",
    "FedOBP",
    "FedPAC",
    "FedPURIN",
    "FedPer",
    "FedProx",
    "FedProxFT",
    "FedRep",
    "FedSelect",
    "Floco",
    "FlocoPlus",
    "KNNPer",
    "LGFedAvg",
    "Learn2pFed",
    "Local",
    "LpProj",
    "PFedFDA",
    "PFedMe",
    "PFedSD",
    "PFedSOP",
    "SoftMerge",
]
