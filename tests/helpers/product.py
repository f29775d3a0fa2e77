"""The smallest federation with a body and a head: the prediction is h · b, the loss ½(hb − a)². Worked by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from pfl_lightning.algorithm import Algorithm
from pfl_lightning.data.federated import DataSpec
from pfl_lightning.loop import FederatedFabricLoop, LoopConfig
from pfl_lightning.nets import Net
from pfl_lightning.tasks import Task
from tests.helpers.scalar import Targets
from tests.helpers.visits import open_client


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Product(Task):
    """½(hb − a)², from h = b = 1."""

    sums: ClassVar[tuple[str, ...]] = ("squares", "count")
    better: ClassVar[Mapping[str, str]] = {"rmse": "lower"}

    def __init__(self, **optimizer: float) -> None:
        super().__init__()
        self.optimizer = {"lr": 0.1, **optimizer}

    def build(self, spec: DataSpec) -> None:
        self.net = Net(Scale(), Scale())

    def configure_optimizers(self) -> Optimizer:
        return SGD([p for p in self.parameters() if p.requires_grad], **self.optimizer)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int = 0) -> Tensor:
        return 0.5 * (self.net(torch.ones_like(batch[1])) - batch[1]).square().mean()

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int = 0) -> Tensor:
        squares = (self.net(torch.ones_like(batch[1])) - batch[1]).square().sum()
        return torch.stack([squares, torch.tensor(float(len(batch[1])))]).double()

    def metrics(self, sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"rmse": np.sqrt(sums["squares"] / sums["count"])}


class ProductClients:
    """Clients with targets a, one sample each, on one rank; an epoch is one step of gradient descent."""

    def __init__(
        self,
        algorithm: Algorithm,
        targets: Sequence[float] = (3, -1),
        optimizer: Mapping[str, float] | None = None,
        **loop: Any,
    ) -> None:
        data = Targets(list(targets), [1] * len(targets))
        data.setup(0)
        config = LoopConfig(**{"rounds": 100, "eval_every": 0, **loop})
        fabric = Fabric(accelerator="cpu", devices=1)
        self.loop = FederatedFabricLoop(fabric, Product(**(optimizer or {})), algorithm, data, config)

    @property
    def server(self) -> list[float]:
        """The global [b, h]."""
        return self.loop.server.vector.tolist()

    def tested(self, client: int) -> list[float]:
        """The [b, h] that a client would be tested with now."""
        open_client(self.loop, client)
        self.loop.algorithm.personalize(self.loop.engine.client, self.loop.server)
        return self.loop.engine.client.vector.tolist()
