"""Runs of users' modules on the toy federation, under many methods in one group of processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning import LightningModule
from lightning.fabric import Fabric

from pfl_lightning.algorithm import Algorithm
from pfl_lightning.data.federated import DataSpec, FederatedData, Samples
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.loop import FederatedFabricLoop, LoopConfig
from tests.helpers.ranks import run_on_ranks
from tests.helpers.toy import ToyData, fingerprint

Module = LightningModule | Callable[..., LightningModule]


class ToyNumbers(ToyData):
    """The toy federation with numbers to predict."""

    spec = DataSpec((6,), 1)

    def load(self) -> Samples:
        samples = super().load()
        targets = samples.x.sum(1, keepdim=True) / 6 + samples.y[:, None].float()
        return samples._replace(y=targets)


def lit_loop(
    fabric: Fabric, module: Any, algorithm: Algorithm, data: FederatedData, **config: Any
) -> FederatedFabricLoop:
    data.setup(1)
    settings = {"rounds": 2, "participation": 0.4, "local_epochs": 2, "batch_size": 12, "eval_every": 2, **config}
    return FederatedFabricLoop(fabric, module, algorithm, data, LoopConfig(**settings), 1)


def lit_summaries(
    world: int, module: Any, algorithms: Mapping[str, Callable[[], Algorithm]], make_data: Callable[[], FederatedData]
) -> dict[str, dict[str, Any] | str]:
    """The summary of a run under each method, or the one line with which it is refused."""

    def work(fabric: Fabric) -> dict[str, dict[str, Any] | str]:
        results: dict[str, dict[str, Any] | str] = {}
        for name, make in algorithms.items():
            torch.manual_seed(0)
            try:
                results[name] = fingerprint(lit_loop(fabric, module, make(), make_data()).fit())
            except ConfigError as error:
                results[name] = str(error)
        return results

    first, *others = run_on_ranks(work, world)
    assert all(other == first for other in others)
    return first  # type: ignore[no-any-return]
