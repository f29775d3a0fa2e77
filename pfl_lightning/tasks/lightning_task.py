"""Any LightningModule as a task: its steps, hooks, optimizers and logs work as they do under Lightning's Trainer."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.optim import Optimizer
from torchmetrics import MetricCollection
from typing_extensions import override

from pfl_lightning.foundation.errors import ConfigError, require
from pfl_lightning.tasks.data_facts import call_with_facts
from pfl_lightning.tasks.factories import ModuleFactory
from pfl_lightning.tasks.hooks import Hooks, overrides
from pfl_lightning.tasks.logged_sums import LoggedSums
from pfl_lightning.tasks.metric_sums import keep_local, muted, reset_metrics
from pfl_lightning.tasks.optimization import Optimization, read_optimizers
from pfl_lightning.tasks.task import Autocast, Batch, Task
from pfl_lightning.tasks.training_log import TrainingLog
from pfl_lightning.tasks.trial import reason, try_module
from pfl_lightning.tasks.weights import load_weights

if TYPE_CHECKING:
    from pfl_lightning.data.federated import DataSpec


class LightningTask(Task):
    """A user's LightningModule as a task. The loop makes it by itself when it is given a plain module.

    Args:
        module: the module (a copy is trained), its class, or a function that makes it. A class or function is called
            when the data is known, inside the seeded block. See `data_facts` for the parameters filled in.
        head: the path of the head in the module. By default the layer named head, classifier or fc, else the last
            linear layer.
        weights: initial weights: a state_dict file.
        gradient_clip: the largest norm of a gradient.
    """

    module: LightningModule
    hooks: Hooks
    net_name = "module"

    def __init__(
        self,
        module: ModuleFactory,
        head: str | None = None,
        weights: str | None = None,
        gradient_clip: float | None = None,
    ) -> None:
        super().__init__()
        require(gradient_clip is None or gradient_clip > 0, "gradient_clip", gradient_clip, "a number above 0, or null")
        self.head_path, self.weights, self.gradient_clip = head, weights, gradient_clip
        # a function hides a given module, which must not become a part of this one before `build` copies it
        self._make: ModuleFactory = (lambda: copy.deepcopy(module)) if isinstance(module, LightningModule) else module

    @property
    def net(self) -> nn.Module:  # type: ignore[override]
        """The user's module."""
        return self.module

    @override
    def build(self, spec: DataSpec) -> None:
        module = call_with_facts(self._make, spec, "task")
        kind = type(module).__name__
        if not isinstance(module, LightningModule):
            raise ConfigError(f"task: {kind} is not a LightningModule")
        self.module = module
        for name in ("training_step", "configure_optimizers"):
            if not overrides(module, name):
                raise ConfigError(f"task: {kind} needs a {name}")
        self.phase = next((phase for phase in ("test", "validation") if overrides(module, f"{phase}_step")), "")
        if not self.phase:
            raise ConfigError(f"task: {kind} needs a test_step or a validation_step that logs its metrics")
        self.hooks = Hooks(module, active=True)
        self.logged, self.trained = LoggedSums(kind), TrainingLog(kind)
        module.log, module.log_dict = self._log, self._log_dict  # type: ignore[method-assign]
        for name, arguments in (("setup", ("fit",)), ("configure_model", ())):
            self._prepare(name, *arguments)
        if not module.automatic_optimization:
            raise ConfigError(f"task: {kind} uses manual optimization; return the loss from training_step instead")
        keep_local(module)
        if self.weights is not None:
            load_weights(module, self.weights, self.head_name and self.head_name.removeprefix("module."))

    def _prepare(self, name: str, *arguments: Any) -> None:
        """Call a method that completes the module before it is used."""
        try:
            self.hooks.run(name, *arguments)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"task: {type(self.module).__name__}.{name} fails: {reason(error)}") from error

    @override
    def try_out(self, batch: Batch, autocast: Autocast) -> None:
        """Run each step and hook once, to find the logged metrics and to report errors in one line."""
        try_module(self, batch, autocast)
        self.logged.known = self.trained.known = True
        self.sums = self.logged.names()
        self.better = self.logged.better(getattr(self.module, "better", {}))
        self.unpooled = frozenset(name for name, entry in self.logged.entries.items() if not entry.pooled)

    @override
    def training_step(self, batch: Batch, batch_idx: int = 0) -> Tensor:
        transformed = is_functorch_wrapped_tensor(batch[0])
        self.trained.see(0 if transformed else len(batch[1]))
        with muted(self.module) if transformed else nullcontext():
            result = self.hooks.run("training_step", batch, self.batch_idx)
        loss = result.get("loss") if isinstance(result, Mapping) else result
        if not isinstance(loss, Tensor):
            kind = type(self.module).__name__
            raise ConfigError(
                f"task: {kind}.training_step returns {type(loss).__name__}; return a loss or a dict with it"
            )
        if not transformed:
            self.outputs = {**(result if isinstance(result, Mapping) else {}), "loss": loss.detach()}
        return loss.reshape(()) if loss.ndim and loss.numel() == 1 else loss

    @override
    def test_sums(self, batches: Iterable[Batch], autocast: Autocast) -> Tensor:
        hooks, on, total, index = self.hooks, f"on_{self.phase}", 0, 0
        for index, batch in enumerate(batches):
            if not total:
                self._start_test()
            self.logged.samples = len(batch[1])
            total += len(batch[1])
            hooks.call(f"{on}_batch_start", batch, index)
            with autocast():
                outputs = hooks.run(f"{self.phase}_step", batch, index)
            hooks.call(f"{on}_batch_end", outputs, batch, index)
        if not total:
            return torch.zeros(len(self.sums), dtype=torch.float64, device=self.device)
        self.logged.samples = total
        hooks.call(f"{on}_epoch_end")
        sums = self.logged.sums(self.device)
        hooks.call(f"{on}_end")
        hooks.trainer.testing = hooks.trainer.validating = False
        reset_metrics(self.module)
        return sums

    def _start_test(self) -> None:
        trainer = self.hooks.trainer
        trainer.testing, trainer.validating = self.phase == "test", self.phase == "validation"
        reset_metrics(self.module)
        self.logged.start()
        self.hooks.call(f"on_{self.phase}_start")
        self.hooks.call(f"on_{self.phase}_epoch_start")

    def _log(
        self, name: str, value: Any, *_: Any, reduce_fx: Any = "mean", batch_size: int | None = None, **__: Any
    ) -> None:
        """`self.log` of the user's module."""
        trainer, trained = self.hooks.trainer, self.trained
        if trainer.testing or trainer.validating:
            self.logged.add(name, value, reduce_fx, batch_size)
        elif trainer.training and trained.batch_samples:
            samples = trained.epoch_samples if self.hooks.latest == "on_train_epoch_end" else trained.batch_samples
            trained.add(name, value, samples if batch_size is None else batch_size, reduce_fx)

    def _log_dict(self, dictionary: Any, *_: Any, **options: Any) -> None:
        """`self.log_dict` of the user's module."""
        collection = isinstance(dictionary, MetricCollection)
        for name, value in dictionary.items(copy_state=False) if collection else dictionary.items():
            self._log(name, value, **options)

    @override
    def metrics(self, sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return self.logged.values(sums)

    @override
    def optimization(self) -> Optimization:
        return read_optimizers(self.hooks.run("configure_optimizers"), type(self.module).__name__)

    @override
    def configure_optimizers(self) -> Optimizer:
        return self.optimization().optimizer

    @override
    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.module(x)
        return outputs


def as_task(task: Task | LightningModule | ModuleFactory) -> Task:
    """A task as it is, and any other LightningModule, class or function as a `LightningTask`."""
    if isinstance(task, Task):
        return task
    if not callable(task):
        raise ConfigError(f"task: {task!r} is not a LightningModule; use a module, its class or a function")
    return LightningTask(task)
