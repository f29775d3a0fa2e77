"""The smallest federation: each client's loss is ½(x − a)², its model the vector x. Numbers can be worked by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from pfl_lightning.algorithm import Algorithm
from pfl_lightning.data.federated import DataSpec, FederatedData, Samples
from pfl_lightning.data.partitions.partition import Parts
from pfl_lightning.engine.cohort import draw_cohort
from pfl_lightning.loop import FederatedFabricLoop, LoopConfig
from pfl_lightning.tasks import Task
from tests.helpers.visits import open_client


class Targets(FederatedData):
    """Client i has n_i copies of its target a_i (a number, or a vector) to train on and one to test on."""

    def __init__(self, targets: Sequence[float] | Sequence[Sequence[float]], sizes: Sequence[int]) -> None:
        super().__init__(len(sizes))
        self.targets = torch.tensor(targets, dtype=torch.float32).reshape(len(sizes), -1)
        self.sizes = sizes
        self.spec = DataSpec((self.targets.shape[1],), self.targets.shape[1])

    def load(self) -> Samples:
        rows = self.targets.repeat_interleave(torch.tensor(self.sizes) + 1, dim=0)
        return Samples(rows, rows.clone(), 0)

    def draw(self, samples: Samples, rng: np.random.Generator) -> Parts:
        sizes = np.array(self.sizes, dtype=np.int64)
        return Parts(np.arange(len(samples.y)), sizes, np.ones_like(sizes))


class Quadratic(Task):
    """½ ‖x − a‖², x the only parameter; it starts at `start`."""

    sums: ClassVar[tuple[str, ...]] = ("squares", "count")
    better: ClassVar[Mapping[str, str]] = {"rmse": "lower"}

    def __init__(self, lr: float, start: Sequence[float]) -> None:
        super().__init__()
        self.lr, self.start = lr, start

    def build(self, spec: DataSpec) -> None:
        self.x = nn.Parameter(torch.tensor(self.start, dtype=torch.float32))

    def configure_optimizers(self) -> Optimizer:
        return SGD([p for p in self.parameters() if p.requires_grad], lr=self.lr)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int = 0) -> Tensor:
        return 0.5 * (self.x - batch[1]).square().sum(1).mean()

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int = 0) -> Tensor:
        squares = (self.x - batch[1]).square().sum()
        return torch.stack([squares, torch.tensor(float(len(batch[1])))]).double()

    def metrics(self, sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"rmse": np.sqrt(sums["squares"] / sums["count"])}


class ScalarClients:
    """A federation of quadratics on one rank; `steps` full-batch steps of gradient descent a visit."""

    def __init__(
        self,
        algorithm: Algorithm,
        targets: Sequence[float] | Sequence[Sequence[float]],
        sizes: Sequence[int],
        steps: int,
        lr: float = 0.1,
        start: Sequence[float] | None = None,
        participation: float = 1.0,
        fabric: Fabric | None = None,
    ) -> None:
        data = Targets(targets, sizes)
        data.setup(0)
        config = LoopConfig(100, participation, local_epochs=steps, batch_size=1000, eval_every=0)
        task = Quadratic(lr, start or [0.0] * data.targets.shape[1])
        self.loop = FederatedFabricLoop(fabric or Fabric(accelerator="cpu", devices=1), task, algorithm, data, config)

    def rounds(self, count: int) -> list[int]:
        """Run rounds; returns the clients of the last."""
        for _ in range(count):
            self.loop.round()
        return draw_cohort(0, self.loop.server.round, self.loop.data.num_clients, self.loop.config.participation)

    @property
    def server_value(self) -> float:
        """The global model, a single number."""
        return float(self.loop.server.vector)

    def client_values(self) -> list[float]:
        """The model each client would be tested with now."""
        values = []
        for client in range(self.loop.data.num_clients):
            open_client(self.loop, client)
            self.loop.algorithm.personalize(self.loop.engine.client, self.loop.server)
            values.append(float(self.loop.engine.client.vector))
        return values
