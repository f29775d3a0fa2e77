"""A federation of a few given points: the body multiplies by one number, the head is linear. Features are obvious."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.nn import Linear
from torch.optim import SGD

from pfl_lightning.algorithm import Algorithm
from pfl_lightning.data.federated import DataSpec, FederatedData, Samples
from pfl_lightning.data.partitions.partition import Parts
from pfl_lightning.loop import FederatedFabricLoop, LoopConfig
from pfl_lightning.model.client import ClientModule
from pfl_lightning.nets import Net
from pfl_lightning.tasks import Classification
from tests.helpers.product import Scale
from tests.helpers.visits import open_client

Labelled = Sequence[tuple[Sequence[float], int]]


class Points(FederatedData):
    """Client i has the points train[i] to train on and test[i] to be tested on."""

    def __init__(self, train: Sequence[Labelled], test: Sequence[Labelled], num_classes: int) -> None:
        super().__init__(len(train))
        self.rows = [point for own, later in zip(train, test, strict=True) for point in (*own, *later)]
        self.train, self.test = train, test
        self.spec = DataSpec((len(self.rows[0][0]),), num_classes)

    def load(self) -> Samples:
        x = torch.tensor([x for x, _ in self.rows], dtype=torch.float32)
        return Samples(x, torch.tensor([y for _, y in self.rows]), 0)

    def draw(self, samples: Samples, rng: np.random.Generator) -> Parts:
        train, test = (np.array([len(part) for part in parts], dtype=np.int64) for parts in (self.train, self.test))
        return Parts(np.arange(len(samples.y)), train, test)


class PointNet(Net):
    def __init__(self, spec: DataSpec) -> None:
        super().__init__(Scale(), Linear(spec.shape[0], spec.num_classes))


def point_loop(
    algorithm: Algorithm,
    train: Sequence[Labelled],
    test: Sequence[Labelled] | None = None,
    num_classes: int = 2,
    lr: float = 0.1,
    fabric: Fabric | None = None,
    **config: Any,
) -> FederatedFabricLoop:
    data = Points(train, test or [own[:1] for own in train], num_classes)
    data.setup(0)
    task = Classification(PointNet, lambda p: SGD(p, lr=lr))
    settings = LoopConfig(**{"rounds": 10, "batch_size": 100, "eval_every": 0, **config})
    return FederatedFabricLoop(fabric or Fabric(accelerator="cpu", devices=1), task, algorithm, data, settings)


def opened(loop: FederatedFabricLoop, client: int, step: str = "download") -> ClientModule:
    """The live module as this client, after a step of the algorithm."""
    open_client(loop, client)
    getattr(loop.algorithm, step)(loop.engine.client, loop.server)
    return loop.engine.client


def weights(client: ClientModule) -> tuple[float, Tensor, Tensor]:
    """The body's number, the head's weight [C, D] and bias [C]."""
    views = client.layout.views(client.vector.clone())
    return float(views["net.body.weight"]), views["net.head.weight"], views["net.head.bias"]
