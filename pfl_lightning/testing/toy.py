"""A small federation that trains in milliseconds: unequal clients, BatchNorm, dropout."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric import Fabric
from torch import nn
from torch.optim import SGD
from typing_extensions import override

from pfl_lightning.algorithm import Algorithm
from pfl_lightning.algorithms import PFedSOP
from pfl_lightning.checkpoint import CheckpointConfig, Checkpoints, resume
from pfl_lightning.data.federated import DataSpec, FederatedData, Samples
from pfl_lightning.data.partitions.partition import Parts
from pfl_lightning.foundation.errors import StopRound
from pfl_lightning.loop import FederatedFabricLoop, LoopConfig
from pfl_lightning.nets import Net
from pfl_lightning.store import StoreConfig
from pfl_lightning.tasks import Classification
from pfl_lightning.testing.ranks import run_on_ranks

TRAIN_SIZES = [9, 17, 4, 30, 12, 25, 8]
TEST_SIZE = 5


class ToyData(FederatedData):
    """Seven clients with three classes, shifted differently at each client."""

    spec = DataSpec((6,), 3)

    def __init__(self, num_clients: int = 7) -> None:
        super().__init__(num_clients)

    @override
    def load(self) -> Samples:
        rng = np.random.default_rng(5)
        sizes = [n + TEST_SIZE for n in self.sizes()]
        client = np.repeat(np.arange(self.num_clients), sizes)
        y = rng.integers(0, 3, len(client))
        x = rng.normal(size=(len(client), 6)) + 2 * np.eye(6)[y] + np.eye(6)[3 + (y + client) % 3]
        return Samples(torch.from_numpy(x).float(), torch.from_numpy(y), 0)

    @override
    def draw(self, samples: Samples, rng: np.random.Generator) -> Parts:
        sizes = np.array(self.sizes(), dtype=np.int64)
        return Parts(np.arange(len(samples.y)), sizes, np.full(self.num_clients, TEST_SIZE, dtype=np.int64))

    def sizes(self) -> list[int]:
        """Training samples of each client."""
        return (TRAIN_SIZES * self.num_clients)[: self.num_clients]


class ToyNet(Net):
    """A hidden layer with everything that could go wrong: BatchNorm's statistics, dropout's random numbers."""

    def __init__(self, spec: DataSpec) -> None:
        super().__init__(
            nn.Sequential(nn.Linear(spec.shape[0], 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2)),
            nn.Linear(8, spec.num_classes),
        )


class PlainNet(Net):
    """A hidden layer and nothing that depends on how samples are put together."""

    def __init__(self, spec: DataSpec) -> None:
        super().__init__(nn.Sequential(nn.Linear(spec.shape[0], 8), nn.ReLU()), nn.Linear(8, spec.num_classes))


def toy_loop(
    fabric: Fabric,
    algorithm: Algorithm,
    num_clients: int = 7,
    seed: int = 1,
    store: StoreConfig | None = None,
    net: Callable[[DataSpec], Net] = ToyNet,
    momentum: float | None = None,
    **config: Any,
) -> FederatedFabricLoop:
    """A loop on the toy federation. The optimizer has momentum, unless the algorithm refuses that."""
    data = ToyData(num_clients)
    data.setup(seed)
    if momentum is None:
        momentum = 0.0 if isinstance(algorithm, PFedSOP) else 0.5
    task = Classification(net, lambda p: SGD(p, lr=0.1, momentum=momentum))
    settings = {"rounds": 3, "local_epochs": 2, "batch_size": 8, "eval_every": 2, **config}
    return FederatedFabricLoop(fabric, task, algorithm, data, LoopConfig(**settings), seed, store=store)


def toy_summary(world: int, algorithm: Algorithm, **config: Any) -> dict[str, Any]:
    """The summary of a toy run on `world` ranks, checked to be the same on each of them."""

    def work(fabric: Fabric) -> dict[str, Any]:
        return toy_loop(fabric, algorithm, **config).fit()

    summaries = run_on_ranks(work, world)
    for summary in summaries:
        assert fingerprint(summary) == fingerprint(summaries[0])
    first: dict[str, Any] = summaries[0]
    return first


def interrupted_summary(
    run_dir: Path, worlds: Mapping[int, int], algorithm: Algorithm, **config: Any
) -> dict[str, Any]:
    """The summary of a toy run that goes on from its checkpoint on another number of ranks.

    Args:
        run_dir: where the checkpoints are.
        worlds: the round at which a part of the run ends -> on how many ranks it is.
        algorithm: the method.
        config: settings of the loop.
    """
    summary: dict[str, Any] = {}
    for rounds, world in worlds.items():

        def work(fabric: Fabric, rounds: int = rounds) -> dict[str, Any]:
            loop = toy_loop(fabric, algorithm, rounds=rounds, **config)
            checkpoints = Checkpoints(run_dir, loop, CheckpointConfig(every_rounds=1))
            resume(checkpoints, fallback=False)
            return loop.fit([checkpoints])

        summary = run_on_ranks(work, world)[0]
    return summary


def disturbed_summary(
    world: int, algorithm: Algorithm, rank: int, moments: list[int], **config: Any
) -> tuple[dict[str, Any], int]:
    """The summary of a run that stops on request and goes on, and how often it stopped.

    Args:
        world: number of ranks.
        algorithm: the method.
        rank: the rank that gets the request. The others know nothing.
        moments: at which of its batches.
        config: settings of the loop.
    """

    def work(fabric: Fabric) -> tuple[dict[str, Any], int]:
        loop = toy_loop(fabric, algorithm, **config)
        batches, stops = 0, 0

        def count(check: Callable[[], None]) -> None:
            nonlocal batches
            batches += 1
            if fabric.global_rank == rank and batches in moments:
                loop.comm.stop.seen.append(signal.SIGTERM)
            check()

        for client in getattr(loop.engine, "clients", [loop.engine.client]):
            client.check_for_stop = partial(count, client.check_for_stop)
        while True:
            try:
                return loop.fit(), stops
            except StopRound:
                stops += 1
                loop.comm.stop.seen.clear()
                assert not loop.store.pending

    return run_on_ranks(work, world)[0]  # type: ignore[no-any-return]


def fingerprint(summary: dict[str, Any]) -> dict[str, Any]:
    """The values that must not depend on the number of ranks: all but times and the number itself."""
    timed = ("seconds", "samples_per_second", "world_size", "phase_seconds", "peak_memory")
    return {key: value for key, value in summary.items() if key not in timed}
