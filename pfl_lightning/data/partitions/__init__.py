"""Rules that deal the samples of a data set to clients."""

from pfl_lightning.data.partitions.classes import IID, Classes, Shards
from pfl_lightning.data.partitions.dirichlet import ClientDirichlet, Dirichlet
from pfl_lightning.data.partitions.natural import Natural
from pfl_lightning.data.partitions.partition import Partition, Parts, Population
from pfl_lightning.data.partitions.saved import SavedPartition, save_partition

__all__ = [
    "IID",
    "Classes",
    "ClientDirichlet",
    "Dirichlet",
    "Natural",
    "Partition",
    "Parts",
    "Population",
    "SavedPartition",
    "Shards",
    "save_partition",
]
