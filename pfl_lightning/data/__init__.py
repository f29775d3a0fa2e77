"""Who has what: data sets, and the rules that deal their samples to the clients."""

from pfl_lightning.data.federated import DataSpec, FederatedData, Samples
from pfl_lightning.data.images import ImageData
from pfl_lightning.data.load import Load
from pfl_lightning.data.partitions import (
    IID,
    Classes,
    ClientDirichlet,
    Dirichlet,
    Partition,
    SavedPartition,
    Shards,
    save_partition,
)
from pfl_lightning.data.polynomial import Polynomial
from pfl_lightning.data.sets import CIFAR10, CIFAR100, EMNIST, MNIST, SVHN, Fashion10k, FashionMNIST

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "EMNIST",
    "IID",
    "MNIST",
    "SVHN",
    "Classes",
    "ClientDirichlet",
    "DataSpec",
    "Dirichlet",
    "Fashion10k",
    "FashionMNIST",
    "FederatedData",
    "ImageData",
    "Load",
    "Partition",
    "Polynomial",
    "Samples",
    "SavedPartition",
    "Shards",
    "save_partition",
]
