"""`fit`: train a federation from Python, in this process and on one device."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, Literal

import torch
from lightning import LightningModule
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.loggers import Logger
from rich.console import Console
from typing_extensions import override

from pfl_lightning.algorithm import Algorithm
from pfl_lightning.callback import Callback
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.foundation.determinism import deterministic_block
from pfl_lightning.foundation.errors import ConfigError, StopRound
from pfl_lightning.foundation.signals import StopSignals
from pfl_lightning.foundation.torch_state import quiet_torch
from pfl_lightning.loop import FederatedFabricLoop
from pfl_lightning.loop_config import LoopConfig
from pfl_lightning.metrics.record import Metric, RoundRecord
from pfl_lightning.monitor.console import EVALUATED, ConsoleProgress
from pfl_lightning.monitor.loggers import RunLoggers
from pfl_lightning.notebook.result import FitResult
from pfl_lightning.store import StoreConfig
from pfl_lightning.tasks.classification import Classification
from pfl_lightning.tasks.task import Task


def fit(
    algorithm: Algorithm | type[Algorithm],
    task: Task | LightningModule | Callable[..., LightningModule] | None = None,
    data: FederatedData | None = None,
    rounds: int = 100,
    *,
    seed: int = 0,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    store: StoreConfig | None = None,
    accelerator: Literal["auto", "cpu", "cuda"] = "auto",
    precision: Literal["32-true", "bf16-mixed", "16-mixed", "64-true"] = "32-true",
    deterministic: bool = True,
    progress: bool = True,
    **loop: Any,
) -> FitResult:
    """Train a federation and return its results and models. Nothing is written to disk, except by loggers.

    Ctrl-C, or the stop button of a notebook, ends the run between two batches. The result of the complete rounds is
    returned. Torch's random state and its number of threads are as before.

    Args:
        algorithm: how clients cooperate: a method or its class.
        task: the model and its loss: a `Task`, a LightningModule, its class, or a function that makes one. Default:
            `Classification()`.
        data: who has which samples. Default: `Fashion10k()`.
        rounds: number of federated rounds.
        seed: the source of all randomness.
        callbacks: code that follows the run.
        loggers: of Lightning. They get the columns of metrics.csv, one step for each round.
        store: how much memory client states may take, and where the rest goes.
        accelerator: auto: a GPU if there is one, else the CPU.
        precision: of the forward and backward pass.
        deterministic: on a GPU, compute the same bits in every run on the same hardware. False may be faster.
        progress: whether to print how the run goes.
        **loop: other settings of `LoopConfig`, such as `participation=0.1`.
    """
    config = LoopConfig(rounds=rounds, **loop)
    method = algorithm() if isinstance(algorithm, type) else algorithm
    with ExitStack() as stack:
        stop = StopSignals()
        stack.enter_context(stop.noting_interrupts())
        stack.enter_context(quiet_torch())
        fabric = _fabric(accelerator, precision)
        if deterministic and fabric.device.type == "cuda":
            stack.enter_context(deterministic_block())
        made = FederatedFabricLoop(fabric, _own_task(task), method, _own_data(data, seed), config, seed, stop, store)
        for callback in callbacks:
            callback.check(made.history.columns())
        following = _Following(made, RunLoggers(loggers), progress)
        return following.run(callbacks)


class _Following(Callback):
    """Keeps the records of a run, logs them, and shows progress."""

    def __init__(self, loop: FederatedFabricLoop, loggers: RunLoggers, progress: bool) -> None:
        self.loop, self.loggers = loop, loggers
        self.records: list[RoundRecord] = []
        name, better = next(iter(loop.task.better.items()))
        self._progress = ConsoleProgress(loop.config.rounds, Metric.named(name, better), Console(quiet=not progress))

    def run(self, callbacks: Sequence[Callback]) -> FitResult:
        loop = self.loop
        facts = {"algorithm": type(loop.algorithm).__name__, "data": loop.data.name}
        self.loggers.start({**facts, "seed": loop.seed, **{f"loop.{k}": v for k, v in asdict(loop.config).items()}})
        status, interrupted = "failed", False
        header = {**facts, "data": f"{loop.data.name}, {loop.data.num_clients} clients"}
        self._progress.start(header | ({EVALUATED: sample} if (sample := loop.history.sample) else {}))
        try:
            loop.fit([self, *callbacks])
            status = "success"
        except StopRound:
            interrupted = True
        finally:
            self._progress.stop()
            self.loggers.close(status)
        return FitResult(loop, self.records, interrupted)

    @override
    def on_round_end(self, record: RoundRecord) -> None:
        self.records.append(record)
        self.loggers.round(record)
        self._progress.round(record, int(record.scalars["samples"]))


def _fabric(accelerator: str, precision: Any) -> Fabric:
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    alone = LightningEnvironment()  # even inside of a SLURM job
    return Fabric(accelerator=accelerator, devices=1, precision=precision, plugins=alone)


def _own_task(task: Any) -> Any:
    """A copy of a task, so that it can be used again."""
    return Classification() if task is None else copy.deepcopy(task) if isinstance(task, Task) else task


def _own_data(data: FederatedData | None, seed: int) -> FederatedData:
    """The data of this run, set up. The given object stays as it is."""
    if data is None:
        from pfl_lightning.data import Fashion10k

        data = Fashion10k()
    if not isinstance(data, FederatedData):
        kind = type(data).__name__
        raise ConfigError(f"data: {kind} does not say who has which samples; FromDataset takes any torch Dataset")
    data = copy.copy(data)
    data.setup(seed)
    for text in data.warnings:
        warnings.warn(text, stacklevel=3)  # at the call of `fit`
    return data
