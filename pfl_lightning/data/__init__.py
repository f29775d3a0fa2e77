"""Data sets, and the partitions that deal their samples to the clients."""

from typing import Any

from pfl_lightning.data.cifar10c import CIFAR10C
from pfl_lightning.data.electricity import ElectricityLoad
from pfl_lightning.data.federated import DataSpec, FederatedData, Samples
from pfl_lightning.data.images import ImageData
from pfl_lightning.data.medmnist import OrganAMNIST, OrganCMNIST
from pfl_lightning.data.mini_imagenet import MiniImageNet
from pfl_lightning.data.office_home import OfficeHome
from pfl_lightning.data.own import ClientArrays, ClientFolders, FromDataset, ImageTable, Table
from pfl_lightning.data.partitions import (
    IID,
    Classes,
    ClientDirichlet,
    Dirichlet,
    Natural,
    Partition,
    SavedPartition,
    Shards,
    save_partition,
)
from pfl_lightning.data.polynomial import Polynomial
from pfl_lightning.data.sets import CIFAR10, CIFAR100, EMNIST, MNIST, SVHN, Fashion10k, FashionMNIST
from pfl_lightning.data.tiny_imagenet import TinyImageNet

__all__ = [
    "CIFAR10",
    "CIFAR10C",
    "CIFAR100",
    "EMNIST",
    "IID",
    "MNIST",
    "SVHN",
    "Classes",
    "ClientArrays",
    "ClientDirichlet",
    "ClientFolders",
    "DataSpec",
    "Dirichlet",
    "ElectricityLoad",
    "Fashion10k",
    "FashionMNIST",
    "FederatedData",
    "FromDataset",
    "ImageData",
    "ImageTable",
    "MiniImageNet",
    "Natural",
    "OfficeHome",
    "OrganAMNIST",
    "OrganCMNIST",
    "Partition",
    "Polynomial",
    "Samples",
    "SavedPartition",
    "Shards",
    "Table",
    "TinyImageNet",
    "save_partition",
]


def __getattr__(name: str) -> Any:
    """Resolve the former name of a class, which the configs of earlier runs still hold."""
    if name == "Load":
        return ElectricityLoad
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
