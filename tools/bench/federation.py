"""Federations to measure with: random images, which cost what real ones cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from bare_process import Work
from lightning.fabric import Fabric
from torch import Tensor
from torch.optim import SGD

from pfl_lightning.algorithm import Algorithm
from pfl_lightning.cli.launch import FabricConfig, make_fabric
from pfl_lightning.data.federated import DataSpec, Samples
from pfl_lightning.data.images import ImageData
from pfl_lightning.data.partitions.partition import Parts
from pfl_lightning.foundation.seeds import derive_seed
from pfl_lightning.loop import FederatedFabricLoop, LoopConfig
from pfl_lightning.model.local_training import split_batches
from pfl_lightning.store import StoreConfig
from pfl_lightning.tasks import Classification

LR, MOMENTUM = 0.01, 0.7


class RandomImages(ImageData):
    """Clients with given numbers of samples, taken in turn from one pool, which they may share.

    The pool is as large as asked for, so that memory can be measured over the number of clients alone.
    """

    def __init__(
        self, shape: tuple[int, int, int], train_sizes: Sequence[int], test_size: int, pool: int | None = None
    ) -> None:
        super().__init__(len(train_sizes))
        self.spec = DataSpec(shape, 10)
        self.mean, self.std = (0.5,) * shape[0], (0.3,) * shape[0]
        self.train, self.test_size = np.array(train_sizes, dtype=np.int64), test_size
        self.pool = pool or int(self.train.sum()) + test_size * len(train_sizes)

    def load(self) -> Samples:
        channels, height, width = self.spec.shape
        generator = torch.Generator().manual_seed(0)
        x = torch.randint(0, 256, (self.pool, height, width, channels), dtype=torch.uint8, generator=generator)
        return Samples(x, torch.randint(0, 10, (self.pool,), generator=generator), 0)

    def draw(self, samples: Samples, rng: np.random.Generator) -> Parts:
        test = np.full(self.num_clients, self.test_size, dtype=np.int64)
        return Parts(np.arange(int((self.train + test).sum())) % self.pool, self.train, test)


def one_rank(precision: Any = "32-true") -> Fabric:
    """This process, alone."""
    return make_fabric(FabricConfig(accelerator="cpu", devices=1, precision=precision), 1)


def unequal_sizes(clients: int, samples: int) -> list[int]:
    """So many samples in all, with a long tail, as label-skewed partitions have: the largest client has several times
    the mean.
    """
    draw = np.random.default_rng(0).lognormal(0.0, 0.8, clients)
    return [max(10, int(value)) for value in samples * draw / draw.sum()]


def make_loop(
    data: RandomImages,
    net: Callable[[DataSpec], Any],
    algorithm: Algorithm,
    fabric: Fabric | None = None,
    store: StoreConfig | None = None,
    **config: Any,
) -> FederatedFabricLoop:
    """A loop over the data with settings as in the papers, but for what is given."""
    if not hasattr(data, "samples"):
        data.setup(0)
    task = Classification(net, lambda p: SGD(p, lr=LR, momentum=MOMENTUM))
    settings = {"rounds": 10**6, "local_epochs": 5, "batch_size": 32, "eval_every": 0, **config}
    return FederatedFabricLoop(fabric or one_rank(), task, algorithm, data, LoopConfig(**settings), 0, store=store)


def start_again(loop: FederatedFabricLoop) -> None:
    """Make the loop what it was before its first round, so that each turn does the same work."""
    loop.server.vector.copy_(loop.server.initial)
    loop.server.round = 0
    loop.server.memory = {}
    loop.store.reset([-1] * loop.data.num_clients)


def batches_of(loop: FederatedFabricLoop, client: int) -> list[Tensor]:
    """The batches of a client's first visit."""
    indices, found = loop.data.train_indices(client), []
    for epoch in range(loop.config.local_epochs):
        shuffle = torch.Generator().manual_seed(derive_seed(loop.seed, "shuffle", 1, client, str(epoch)))
        found += split_batches(indices[torch.randperm(len(indices), generator=shuffle)], loop.config.batch_size)
    return found


def work_of(loop: FederatedFabricLoop, make_net: Callable[..., torch.nn.Module]) -> Work:
    """The loop's first round as work for a bare loop."""
    data, clients = loop.data, range(loop.data.num_clients)
    x, y = data.batch(torch.arange(len(data.samples.y)), torch.device("cpu"))
    sizes = data.train_sizes
    return Work(
        make_net, x, y, [view.clone() for view in loop.engine.client.layout.views(loop.server.initial).values()],
        [batches_of(loop, client) for client in clients], [data.test_indices(client).clone() for client in clients],
        (sizes / sizes.sum()).tolist(), LR, MOMENTUM,
    )  # fmt: skip
