"""A client: the task, its personalization mask, what it remembers, and how it trains and is tested.

There is one live `ClientModule` per rank. Clients are states that are put into it and taken out again, so memory does
not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from lightning import LightningModule
from lightning.fabric import Fabric
from lightning.fabric.wrappers import _FabricOptimizer
from torch import Tensor, nn
from torch.optim import Optimizer

from pfl_lightning import masks
from pfl_lightning.cohort import derive_seed
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.errors import ConfigError
from pfl_lightning.store import State
from pfl_lightning.tasks.task import Batch, Task
from pfl_lightning.vector import Layout, flatten


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains at one visit."""

    epochs: int = 1
    batch_size: int = 32
    test_batch_size: int = 1024


def split_batches(order: Tensor, batch_size: int) -> list[Tensor]:
    """Cut a permutation into batches; a last one of a single sample, on which BatchNorm cannot train, is merged."""
    batches = list(torch.split(order, batch_size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


class ClientModule(LightningModule):
    """The client that is being visited.

    Attributes:
        task: the user's LightningModule; all its parameters and float buffers are views of `vector`.
        vector: the whole model, flat: parameters [0, P), then floating-point buffers [P, S).
        grad: the gradient of the parameters [P]; every parameter's `.grad` is a view of it.
        mask: bool [S], True = personal. What is personal is kept between visits.
        memory: what the algorithm lets the client remember besides its personal entries.
        id, round, visits: who it is, the present round, and how often it was trained before.
        weight: its share of the round's total weight.
    """

    mask: Tensor

    def __init__(self, task: Task, data: FederatedData, local: LocalTraining, fabric: Fabric, seed: int) -> None:
        super().__init__()
        self.task = task
        self.layout = Layout.of(task)
        self.vector, self.grad = flatten(task, self.layout)
        self.register_buffer("mask", torch.zeros(self.layout.size, dtype=torch.bool, device=self.vector.device))
        self.runtime = fabric
        self.data, self.local, self.seed = data, local, seed
        self.memory: dict[str, Tensor] = {}
        self.id, self.round, self.visits, self.weight = -1, 0, 0, 0.0
        self.loss_sum, self.samples_seen = 0.0, 0

    @property
    def theta(self) -> Tensor:
        """The parameters, flat [P]: a view that reads and writes the live model."""
        return self.vector[: self.layout.num_parameters]

    @property
    def num_samples(self) -> int:
        """How many training samples the client has."""
        return int(self.data.train_sizes[self.id])

    def open(self, client: int, round_: int, state: State | None, initial: Tensor) -> None:
        """Become client `client`: its state comes in; where it has none, it starts from the common initial model."""
        self.id, self.round = client, round_
        self.loss_sum, self.samples_seen = 0.0, 0
        self.vector.copy_(initial)
        self.mask.zero_()
        self.memory = {name: tensor.to(self.vector.device, copy=True) for name, tensor in (state or {}).items()}
        self.visits = int(self.memory.pop("visits", torch.zeros(())))
        if "mask" in self.memory:
            self.mask.copy_(masks.unpack(self.memory.pop("mask"), self.layout.size))
            self.vector[self.mask] = self.memory.pop("personal")
        torch.manual_seed(derive_seed(self.seed, "client", round_, client))

    def state(self) -> State:
        """All that the client keeps until its next visit: personal entries, mask, memory. Nothing of it is aliased."""
        state = {name: tensor.detach().clone().cpu() for name, tensor in self.memory.items()}
        state["visits"] = torch.tensor(self.visits)
        if self.mask.any():
            state["mask"] = masks.pack(self.mask).cpu()
            state["personal"] = self.vector[self.mask].cpu()
        return state

    def batches(self, epoch: str) -> Iterator[Batch]:
        """The client's training data in batches, in an order that depends on (seed, round, client, epoch) only."""
        indices = self.data.train_indices(self.id)
        shuffle = torch.Generator().manual_seed(derive_seed(self.seed, "shuffle", self.round, self.id, epoch))
        order = indices[torch.randperm(len(indices), generator=shuffle)]
        for batch in split_batches(order, self.local.batch_size):
            if len(batch):
                yield self.data.batch(batch, self.vector.device)

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

    def train_epochs(
        self,
        epochs: int | None = None,
        loss: Callable[[Batch], Tensor] | None = None,
        on_gradient: Callable[[], None] | None = None,
        entries: Tensor | None = None,
        stream: str = "",
    ) -> None:
        """Local training with a fresh optimizer.

        Args:
            epochs: passes over the training data; the configured `local_epochs` by default.
            loss: the loss of a batch, mean over samples; the task's own by default.
            on_gradient: called between backward and the optimizer's step; may change `grad` in place.
            entries: bool [P]; only these parameters may move. Momentum and weight decay cannot move the others either.
            stream: names the order of the batches, for methods that train several times at a visit.
        """
        self.task.train()
        optimizer = cast(_FabricOptimizer, self.runtime.setup_optimizers(self.make_optimizer()))
        kept = self.theta.clone() if entries is not None else None
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.vector.device)
        for epoch in range(self.local.epochs if epochs is None else epochs):
            for batch in self.batches(f"{stream}{epoch}"):
                value = self.compute_gradient(batch, loss)
                if on_gradient:
                    on_gradient()
                optimizer.step()
                if entries is not None and kept is not None:
                    torch.where(entries, self.theta, kept, out=self.theta)
                loss_sum += value * len(batch[1])
                self.samples_seen += len(batch[1])
        self.loss_sum += float(loss_sum)

    def compute_gradient(self, batch: Batch, loss: Callable[[Batch], Tensor] | None = None) -> Tensor:
        """Fill `grad` with the gradient of a batch's loss at the present model; returns the loss, detached."""
        self.grad.zero_()
        with self.runtime.autocast():
            value = loss(batch) if loss else self.task.training_step(batch)
        self.runtime.backward(value)
        return value.detach()

    @torch.no_grad()
    def test(self) -> Tensor:
        """The task's sums over the client's test data, for the model as it is now."""
        self.task.eval()
        total = torch.zeros(len(self.task.sums), dtype=torch.float64, device=self.vector.device)
        for index, part in enumerate(torch.split(self.data.test_indices(self.id), self.local.test_batch_size)):
            if len(part):
                with self.runtime.autocast():
                    total += self.task.test_step(self.data.batch(part, self.vector.device), index)
        return total

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
    def only(self, modules: Iterable[nn.Module]) -> Iterator[None]:
        """Train only these modules: every other parameter has no gradient at all, so nothing can move it."""
        chosen = {p for module in modules for p in module.parameters()}
        frozen = [(p, p.grad) for p in self.task.parameters() if p not in chosen]
        for p, _ in frozen:
            p.requires_grad_(False)
            p.grad = None
        try:
            yield
        finally:
            for p, grad in frozen:
                p.requires_grad_(True)
                p.grad = grad
