"""What a round costs with the FedPURIN paper's nets, on a handful of random images: bytes do not depend on pixels."""

from __future__ import annotations

import numpy as np
import torch
from lightning.fabric import Fabric
from torch.optim import SGD

from pfl_lightning.algorithm import Algorithm
from pfl_lightning.data.federated import DataSpec, FederatedData, Samples
from pfl_lightning.data.partitions.partition import Parts
from pfl_lightning.loop import FederatedFabricLoop, LoopConfig
from pfl_lightning.nets import Net, ResNet8, ResNet10
from pfl_lightning.tasks import Classification

MIB = 2**20
NETS: dict[str, tuple[type[Net], DataSpec]] = {
    "fmnist": (ResNet8, DataSpec((1, 28, 28), 10)),
    "cifar10": (ResNet8, DataSpec((3, 32, 32), 10)),
    "cifar100": (ResNet10, DataSpec((3, 32, 32), 100)),
}


class Noise(FederatedData):
    """Two clients with two random images to train on and one to test on."""

    def __init__(self, spec: DataSpec) -> None:
        super().__init__(2)
        self.spec = spec

    def load(self) -> Samples:
        generator = torch.Generator().manual_seed(0)
        return Samples(torch.randn(6, *self.spec.shape, generator=generator), torch.tensor([0, 1, 2, 3, 4, 5]), 0)

    def draw(self, samples: Samples, rng: np.random.Generator) -> Parts:
        return Parts(np.arange(6), np.array([2, 2]), np.array([1, 1]))


def traffic_loop(algorithm: Algorithm, dataset: str) -> FederatedFabricLoop:
    net, spec = NETS[dataset]
    data = Noise(spec)
    data.setup(0)
    task = Classification(net, lambda p: SGD(p, lr=0.01))
    fabric = Fabric(accelerator="cpu", devices=1)
    return FederatedFabricLoop(fabric, task, algorithm, data, LoopConfig(eval_every=0))


def round_bytes(loop: FederatedFabricLoop) -> tuple[int, int]:
    """Bytes up and down in one round, both clients together."""
    scalars = loop.round().scalars
    return int(scalars["up_bytes"]), int(scalars["down_bytes"])
