"""The live model of a rank: a task whose tensors are one flat vector, its gradient, its optimizer, frozen parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import torch
from lightning import LightningModule
from lightning.fabric import Fabric
from lightning.fabric.wrappers import _FabricOptimizer
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import SGD, Optimizer

from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.model.layout import Layout, flatten
from pfl_lightning.model.loss_scale import LossScale
from pfl_lightning.tasks.hooks import GRADIENT, OPTIMIZER, Hooks
from pfl_lightning.tasks.optimization import Optimization, Schedule
from pfl_lightning.tasks.task import Batch, Task

Loss = Callable[[Batch], Tensor]

FUSED_MULTIPLE = 64
"""The fused kernel is bit-identical only on multiples of this many entries (the widest SIMD unroll)."""


class FlatModel(LightningModule):
    """The model at hand, whichever client it belongs to.

    Attributes:
        task: the user's LightningModule. All its parameters and float buffers are views of `vector`.
        vector: the whole model, flat: parameters [0, P), then floating-point buffers [P, S).
        live: the same tensor. It tells whether somebody has assigned another one to `vector`.
        grad: the gradient of the parameters [P]. The `.grad` of every parameter is a view of it.
        fabric_: the Fabric that the model runs on.
        rate_factor: multiplies the task's learning rates in this round.
        optimizer: the latest fresh optimizer.
        flat_optimizer: the same, if it is SGD over the flat vector.
        epoch_schedules: schedulers of the present training that step after each pass over the data.
        gradient_hooks: the hooks to call around a backward pass, during a training only.
    """

    def __init__(
        self, task: Task, fabric: Fabric, channels_last: bool = True, memory: tuple[Tensor, Tensor] | None = None
    ) -> None:
        super().__init__()
        self.task = task
        self.layout = Layout.of(task, channels_last)
        self.vector, self.grad = flatten(task, self.layout, memory)
        self.live = self.vector
        self.fabric_ = fabric
        self.loss_scale = LossScale.for_precision(fabric)
        self.frozen_norms: list[nn.Module] = []
        self.generators = [self.vector.device] if self.vector.is_cuda else []
        for p in task.parameters():
            if not p.requires_grad:
                p.grad = None  # weight decay would move a frozen parameter with a gradient of zero
        self._grad_views = self.layout.views(self.grad)
        if task.hooks.names.intersection(GRADIENT) and type(self).compute_gradient is not FlatModel.compute_gradient:
            name = min(task.hooks.names.intersection(GRADIENT))
            raise ConfigError(f"task: {name} needs loop.clients_per_step 1 and loop.ranks_per_client 1")
        self.rate_factor = 1.0
        self.optimizer: Optimizer | None = None
        self.flat_optimizer: Optimizer | None = None
        self.epoch_schedules: list[Schedule] = []
        self.gradient_hooks: Hooks | None = None

    @property
    def theta(self) -> Tensor:
        """The parameters, flat [P]: a view that reads and writes the live model."""
        return self.vector[: self.layout.num_parameters]

    @property
    def learning_rate(self) -> float:
        """The learning rate of the optimizer's first parameter group, at the start of a training in this round."""
        return float(self.make_optimization().optimizer.param_groups[0]["lr"])

    def make_optimization(self) -> Optimization:
        """A fresh optimizer of the task, over the parameters not frozen, and its schedulers."""
        made = self.task.optimization()
        if self.rate_factor != 1.0:
            made.scale_rates(self.rate_factor)
        return made

    def start_training(self) -> None:
        """Put the model into training mode, except for frozen normalisation layers."""
        self.task.train()
        for norm in self.frozen_norms:
            norm.eval()

    def fresh_optimizer(self, lr: float | None = None) -> _FabricOptimizer:
        """A new optimizer of the task, ready to step the live model.

        Args:
            lr: a learning rate to start from. Default: the optimizer's.
        """
        made, hooks = self.make_optimization(), self.task.hooks
        if lr is not None:
            made.set_rate(lr)
        plain = bool(made.schedules) or hooks.shape_training
        optimizer = made.optimizer if plain else self._flat(made.optimizer)
        if hooks.names.intersection(OPTIMIZER) or self.task.gradient_clip is not None:
            optimizer.register_step_pre_hook(lambda optimizer, *_: self._before_step(optimizer))
        for schedule in made.schedules:
            if schedule.interval == "step":
                optimizer.register_step_post_hook(lambda *_, schedule=schedule: schedule.advance())
            else:
                self.epoch_schedules.append(schedule)
        self.optimizer = optimizer
        self.flat_optimizer = None if optimizer is made.optimizer else optimizer
        return cast(_FabricOptimizer, self.fabric_.setup_optimizers(optimizer))

    def _before_step(self, optimizer: Optimizer) -> None:
        """Lightning's hooks before a step, then gradient clipping."""
        hooks, limit = self.task.hooks, self.task.gradient_clip
        hooks.call("on_before_optimizer_step", optimizer)
        if "configure_gradient_clipping" in hooks.names:
            hooks.run("configure_gradient_clipping", optimizer, limit, "norm")
        elif limit is not None:
            self.grad.mul_((limit / (self.grad.norm() + 1e-6)).clamp(max=1.0))

    def _flat(self, optimizer: Optimizer) -> Optimizer:
        """Replace SGD over the tensors by SGD over the flat vector. It treats all entries the same, so no bit changes.

        Any other optimizer, or one over a part of the model or in groups, stays as it is.
        """
        parameters, (first, *others) = list(self.task.parameters()), optimizer.param_groups
        whole = not others and len(first["params"]) == len(parameters) and all(p.requires_grad for p in parameters)
        if type(optimizer) is not SGD or not whole:
            return optimizer
        options = {name: value for name, value in first.items() if name != "params"}
        if options["foreach"] is not None or options["fused"] is not None or options["differentiable"]:
            return SGD([self._part(0, None)], **options)
        # The fused kernel passes over the memory once instead of three times. It rounds the remainder after its last
        # full vector instruction differently, so the remainder is stepped the usual way: no bit changes.
        end = self.layout.num_parameters // FUSED_MULTIPLE * FUSED_MULTIPLE
        head: dict[str, Any] = {"params": [self._part(0, end)], "fused": True}
        return SGD([head, {"params": [self._part(end, None)]}], **options)

    def _part(self, start: int, stop: int | None) -> nn.Parameter:
        part = nn.Parameter(self.vector[: self.layout.num_parameters][start:stop])
        part.grad = self.grad[start:stop]
        return part

    def compute_gradient(self, batch: Batch, loss: Loss | None = None) -> Tensor:
        """Fill `grad` with the gradient of a batch's loss at the present model. Returns the loss, detached.

        Args:
            batch: the samples.
            loss: an algorithm's own loss of a batch. Default: the task's.
        """
        return self.backpropagate(batch, loss)

    def backpropagate(self, batch: Batch, loss: Loss | None = None, scale: float = 1.0) -> Tensor:
        """Compute the gradient of one batch on this rank, times `scale`. The returned loss is not scaled."""
        hooks = self.gradient_hooks
        while True:
            with self.fabric_.autocast():
                value = loss(batch) if loss else self.task.training_step(batch)
            if hooks:
                hooks.call("on_before_zero_grad", self.optimizer)
            self.grad.zero_()
            scaled = value if scale == 1.0 else value * scale
            if hooks:
                hooks.call("on_before_backward", scaled)
            if self.task.hooks.shape_training:
                self._align_gradients()
            self.fabric_.backward(self.loss_scale.up(scaled) if self.loss_scale else scaled)
            if self.loss_scale is None or self.loss_scale.undo(self.grad):
                break
        if hooks:
            hooks.call("on_after_backward")
        return value.detach()

    def _align_gradients(self) -> None:
        """Hooks may freeze parts and drop gradients: frozen parameters have none, the others their views of `grad`."""
        for name, p in self.task.named_parameters():
            if p.requires_grad != (p.grad is not None):
                p.grad = self._grad_views[name] if p.requires_grad else None

    @contextmanager
    def swap_in(self, vector: Tensor) -> Iterator[None]:
        """Make `vector` [S] the live model inside the block. Changes are written back to it, and the model from before
        returns. For methods whose clients have a second model.
        """
        kept = self.vector.clone()
        self.vector.copy_(vector)
        try:
            yield
        finally:
            vector.copy_(self.vector)
            self.vector.copy_(kept)

    def fork_rng(self) -> AbstractContextManager[None]:
        """Restore the random state after the block, so that later code draws the same numbers again (e.g. dropout)."""
        return torch.random.fork_rng(self.generators)

    def seed_rng(self, seed: int) -> None:
        """Seed like `torch.manual_seed`, but only for the devices in use: the others take a while each time."""
        torch.default_generator.manual_seed(seed)
        for device in self.generators:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)

    def only(self, modules: Iterable[nn.Module]) -> AbstractContextManager[None]:
        """Train only these modules and freeze all others."""
        parts = {part for module in modules for part in module.modules()}
        chosen = {p for part in parts for p in part.parameters(recurse=False)}
        others = [part for part in self.task.modules() if part not in parts]
        return self._frozen([p for p in self.task.parameters() if p not in chosen], others)

    def freezing(self, modules: Iterable[nn.Module]) -> AbstractContextManager[None]:
        """Freeze these modules. Their parameters have no gradient at all, because momentum and weight decay move
        parameters whose gradient is zero. Their BatchNorm statistics stay as well.
        """
        parts = {part: None for module in modules for part in module.modules()}
        return self._frozen({p: None for part in parts for p in part.parameters(recurse=False)}, parts)

    @contextmanager
    def _frozen(self, parameters: Iterable[nn.Parameter], parts: Iterable[nn.Module]) -> Iterator[None]:
        frozen = [(p, p.grad) for p in parameters if p.requires_grad]
        outer = self.frozen_norms
        self.frozen_norms = [*outer, *(part for part in parts if isinstance(part, _NormBase))]
        for p, _ in frozen:
            p.requires_grad_(False)
            p.grad = None
        try:
            yield
        finally:
            self.frozen_norms = outer
            for p, grad in frozen:
                p.requires_grad_(True)
                p.grad = grad
