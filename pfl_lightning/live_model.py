"""The live model of a rank: a task whose tensors are one flat vector, its gradient, its optimizer, what is frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, cast

import torch
from lightning import LightningModule
from lightning.fabric import Fabric
from lightning.fabric.wrappers import _FabricOptimizer
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import SGD, Optimizer

from pfl_lightning.errors import ConfigError
from pfl_lightning.loss_scale import LossScale
from pfl_lightning.tasks.task import Batch, Task
from pfl_lightning.vector import Layout, flatten

Loss = Callable[[Batch], Tensor]

FUSED = 64
"""Entries in whole vector instructions of any CPU."""


class LiveModel(LightningModule):
    """What can be done with the model at hand, whoever's it is.

    Attributes:
        task: the user's LightningModule; all its parameters and float buffers are views of `vector`.
        vector: the whole model, flat: parameters [0, P), then floating-point buffers [P, S).
        grad: the gradient of the parameters [P]; every parameter's `.grad` is a view of it.
        runtime: the Fabric that it runs on.
        gradient_by: how `compute_gradient` does it: by itself, or together with other ranks or other clients.
    """

    def __init__(
        self, task: Task, fabric: Fabric, rows: tuple[Tensor, Tensor] | None = None, channels_last: bool = True
    ) -> None:
        super().__init__()
        self.task = task
        self.layout = Layout.of(task, channels_last)
        self.vector, self.grad = flatten(task, self.layout, rows)
        self.runtime = fabric
        self.loss_scale = LossScale(fabric)
        self.frozen_norms: list[nn.Module] = []
        self._generators = [self.vector.device] if self.vector.is_cuda else []
        self._random: list[tuple[Callable[[Tensor], None], Tensor]] = []
        self.gradient_by: Callable[[LiveModel, Batch, Loss | None], Tensor] = LiveModel.backpropagate

    @property
    def theta(self) -> Tensor:
        """The parameters, flat [P]: a view that reads and writes the live model."""
        return self.vector[: self.layout.num_parameters]

    @property
    def learning_rate(self) -> float:
        """The local learning rate: the optimizer's, first parameter group."""
        return float(self.make_optimizer().param_groups[0]["lr"])

    def make_optimizer(self) -> Optimizer:
        """A fresh optimizer of the task, over the parameters that are not frozen."""
        optimizer = self.task.configure_optimizers()
        if not isinstance(optimizer, Optimizer):
            raise ConfigError("task: configure_optimizers must return one torch optimizer (and no scheduler)")
        return optimizer

    def start_training(self) -> None:
        """Put the model into training mode, but for frozen normalisation layers."""
        self.task.train()
        for norm in self.frozen_norms:
            norm.eval()

    def fresh_optimizer(self) -> _FabricOptimizer:
        """A new optimizer of the task, ready to step the live model."""
        return cast(_FabricOptimizer, self.runtime.setup_optimizers(self._flat(self.make_optimizer())))

    def _flat(self, optimizer: Optimizer) -> Optimizer:
        """SGD over the flat vector in place of one tensor after the other: it treats every entry alike, so the outcome
        is the same. Any other optimizer, or one over a part of the model or in groups, stays what it is.
        """
        parameters, (first, *others) = list(self.task.parameters()), optimizer.param_groups
        whole = not others and len(first["params"]) == len(parameters)
        if type(optimizer) is not SGD or not whole:
            return optimizer
        options = {name: value for name, value in first.items() if name != "params"}
        if options["foreach"] is not None or options["fused"] is not None or options["differentiable"]:
            return SGD([self._part(0, None)], **options)
        # Fused goes over the memory once instead of three times. It rounds what is left over at the end of its vector
        # instructions in another way, so that is done as usual: no bit is different.
        end = self.layout.num_parameters // FUSED * FUSED
        head: dict[str, Any] = {"params": [self._part(0, end)], "fused": True}
        return SGD([head, {"params": [self._part(end, None)]}], **options)

    def _part(self, start: int, stop: int | None) -> nn.Parameter:
        part = nn.Parameter(self.theta[start:stop])
        part.grad = self.grad[start:stop]
        return part

    def compute_gradient(self, batch: Batch, loss: Loss | None = None) -> Tensor:
        """Fill `grad` with the gradient of a batch's loss at the present model; returns the loss, detached.

        Args:
            batch: the samples.
            loss: an algorithm's own loss of a batch; the task's by default.
        """
        return self.gradient_by(self, batch, loss)

    def backpropagate(self, batch: Batch, loss: Loss | None = None, share: float = 1.0) -> Tensor:
        """What `compute_gradient` does on its own; `share` scales the gradient, not the loss that is returned."""
        while True:
            with self.runtime.autocast():
                value = loss(batch) if loss else self.task.training_step(batch)
            self.grad.zero_()
            self.runtime.backward(self.loss_scale.up(value if share == 1.0 else value * share))
            if self.loss_scale.undo(self.grad):
                return value.detach()

    @contextmanager
    def holding(self, vector: Tensor) -> Iterator[None]:
        """Let the live model be `vector` [S] for a while: what training changes is written back to it, then the model
        that was there before returns. For methods whose clients have a second model.
        """
        kept = self.vector.clone()
        self.vector.copy_(vector)
        try:
            yield
        finally:
            vector.copy_(self.vector)
            self.vector.copy_(kept)

    @contextmanager
    def rewinding(self) -> Iterator[None]:
        """Give the random numbers that are drawn inside (dropout's) out once more afterwards, so that a second model
        sees the same ones, or the training is the same as without what happens here.
        """
        with torch.random.fork_rng(self._generators):
            yield

    def seed_random(self, seed: int) -> None:
        """What `torch.manual_seed` does, on the devices that are used; for all others that takes a while each time."""
        torch.default_generator.manual_seed(seed)
        for device in self._generators:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)

    @contextmanager
    def own_random(self) -> Iterator[None]:
        """Draw on from where the last such block ended, and leave torch's random state as it was: for clients that
        take turns. A seed that is set inside starts the numbers of this model anew.
        """
        with torch.random.fork_rng(self._generators):
            for set_state, state in self._random:
                set_state(state)
            try:
                yield
            finally:
                self._random = [(torch.set_rng_state, torch.get_rng_state())]
                for device in self._generators:
                    setter = partial(torch.cuda.set_rng_state, device=device)
                    self._random.append((setter, torch.cuda.get_rng_state(device)))

    def only(self, modules: Iterable[nn.Module]) -> AbstractContextManager[None]:
        """Train only these modules and freeze all others."""
        parts = {part for module in modules for part in module.modules()}
        chosen = {p for part in parts for p in part.parameters(recurse=False)}
        others = [part for part in self.task.modules() if part not in parts]
        return self._frozen([p for p in self.task.parameters() if p not in chosen], others)

    def freezing(self, modules: Iterable[nn.Module]) -> AbstractContextManager[None]:
        """Freeze these modules: nothing can move their parameters, since they have no gradient at all (a gradient of
        zero is not enough for momentum and weight decay), nor their BatchNorm statistics.
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
