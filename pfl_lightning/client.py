"""A client: the task, its personalization mask, what it remembers, and how it trains and is tested.

There is one live `ClientModule` per rank (or a few, see `side_by_side`). Clients are states that are put into it and
taken out again, so memory does not grow with their number.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from lightning.fabric import Fabric
from torch import Tensor

from pfl_lightning import masks
from pfl_lightning.cohort import derive_seed
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.live_model import LiveModel
from pfl_lightning.store import State
from pfl_lightning.tasks.task import Batch, Task
from pfl_lightning.transfer import to_device, to_host


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains at one visit."""

    epochs: int = 1
    batch_size: int = 32
    test_batch_size: int = 1024
    channels_last: bool = True


def split_batches(order: Tensor, batch_size: int) -> list[Tensor]:
    """Cut a permutation into batches; a last one of a single sample, on which BatchNorm cannot train, is merged."""
    batches = list(torch.split(order, batch_size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


class ClientModule(LiveModel):
    """The client that is being visited: a live model, whose it is, its data and what it keeps.

    Attributes:
        mask: bool [S], True = personal. What is personal is kept between visits.
        memory: what the algorithm lets the client remember besides its personal entries.
        id, round, visits: who it is, the present round, and how often it was trained before.
        weight: its share of the round's total weight.
        train_indices: the samples it trains on: all its training data, less what is held out at this visit.
        between_batches: called before every batch; the loop looks there whether it was asked to stop.
    """

    mask: Tensor

    def __init__(
        self,
        task: Task,
        data: FederatedData,
        local: LocalTraining,
        fabric: Fabric,
        seed: int,
        rows: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        super().__init__(task, fabric, rows, local.channels_last)
        self.register_buffer("mask", torch.zeros(self.layout.size, dtype=torch.bool, device=self.vector.device))
        self.data, self.local, self.seed = data, local, seed
        self.memory: dict[str, Tensor] = {}
        self.id, self.round, self.visits, self.weight = -1, 0, 0, 0.0
        self.loss_total, self.samples_seen = torch.zeros((), dtype=torch.float64, device=self.vector.device), 0
        self.train_indices = torch.empty(0, dtype=torch.int64)
        self.between_batches: Callable[[], None] = lambda: None

    @property
    def loss_sum(self) -> float:
        """The training loss at this visit, summed over samples."""
        return float(self.loss_total)

    @property
    def num_samples(self) -> int:
        """How many samples the client trains on."""
        return len(self.train_indices)

    def open(self, client: int, round_: int, state: State | None, initial: Tensor) -> None:
        """Become client `client`: its state comes in; where it has none, it starts from the common initial model."""
        self.id, self.round = client, round_
        self.train_indices = self.data.train_indices(client)
        self.samples_seen = 0
        self.loss_total.zero_()
        self.loss_scale.reset()
        self.vector.copy_(initial)
        self.mask.zero_()
        self.memory = to_device(state or {}, self.vector.device)
        self.visits = int(self.memory.pop("visits", torch.zeros(())))
        if "mask" in self.memory:
            self.mask.copy_(masks.unpack(self.memory.pop("mask"), self.layout.size))
            self.vector[masks.indices(self.mask)] = self.memory.pop("personal")
        self.seed_random(derive_seed(self.seed, "client", round_, client))

    def state(self) -> State:
        """All that the client keeps until its next visit: personal entries, mask, memory. Nothing of it is aliased."""
        state = dict(self.memory)
        state["visits"] = torch.tensor(self.visits)
        personal = masks.indices(self.mask)
        if len(personal):
            state["mask"] = masks.pack(self.mask)
            state["personal"] = self.vector[personal]
        return to_host(state)

    def hold_out(self, share: float) -> Tensor:
        """Keep a share of the training samples (rounded down) out of this visit's training, to validate on.

        They are the same ones at every visit, so that no model of the client has ever been trained on them.

        Returns:
            Their indices; none for a client with too few samples.
        """
        indices = self.data.train_indices(self.id)
        shuffle = torch.Generator().manual_seed(derive_seed(self.seed, "validation", self.id))
        order = indices[torch.randperm(len(indices), generator=shuffle)]
        count = int(share * len(order))
        self.train_indices = order[count:]
        return order[:count]

    def batches(self, epoch: str, share: float = 1.0) -> Iterator[Batch]:
        """The client's training data, or a share of it (rounded up), in batches. The order, and what is in the share,
        depend on (seed, round, client, epoch) only.
        """
        indices = self.train_indices
        shuffle = torch.Generator().manual_seed(derive_seed(self.seed, "shuffle", self.round, self.id, epoch))
        order = indices[torch.randperm(len(indices), generator=shuffle)][: math.ceil(share * len(indices))]
        for batch in split_batches(order, self.local.batch_size):
            if len(batch):
                self.between_batches()
                yield self.data.batch(batch, self.vector.device)

    def epochs(self, epochs: int | None = None, stream: str = "", steps: int | None = None) -> Iterator[Batch]:
        """The batches of several passes over the training data.

        Args:
            epochs: how many passes; the configured `local_epochs` by default.
            stream: names the order of the batches, for methods that train several times at a visit.
            steps: so many batches instead, in as many passes as that takes.
        """
        passes: Iterable[int] = range(self.local.epochs if epochs is None else epochs)
        if steps is not None:
            passes = itertools.count() if self.num_samples else ()
        yield from itertools.islice((b for epoch in passes for b in self.batches(f"{stream}{epoch}")), steps)

    def note(self, loss: Tensor, batch: Batch) -> None:
        """Count a training step: its loss, and how many samples it saw."""
        self.loss_total += loss * len(batch[1])
        self.samples_seen += len(batch[1])

    def train_epochs(
        self,
        epochs: int | None = None,
        loss: Callable[[Batch], Tensor] | None = None,
        on_gradient: Callable[[], None] | None = None,
        entries: Tensor | None = None,
        stream: str = "",
        steps: int | None = None,
        lr: float | None = None,
    ) -> None:
        """Local training with a fresh optimizer.

        Args:
            epochs: passes over the training data; the configured `local_epochs` by default.
            loss: the loss of a batch, mean over samples; the task's own by default.
            on_gradient: called between backward and the optimizer's step; may change `grad` in place.
            entries: bool [P]; only these parameters may move. Momentum and weight decay cannot move the others either.
            stream: names the order of the batches, for methods that train several times at a visit.
            steps: so many steps instead of epochs.
            lr: a learning rate of its own; the optimizer's by default.
        """
        self.start_training()
        optimizer = self.fresh_optimizer()
        for group in optimizer.param_groups if lr is not None else ():
            group["lr"] = lr
        restore = masks.restorer(self.theta, entries) if entries is not None else None
        for batch in self.epochs(epochs, stream, steps):
            value = self.compute_gradient(batch, loss)
            if on_gradient:
                on_gradient()
            optimizer.step()
            if restore:
                restore()
            self.note(value, batch)

    def test(self) -> Tensor:
        """The task's sums over the client's test data, for the model as it is now."""
        return self.test_on(self.data.test_indices(self.id))

    @torch.no_grad()
    def test_on(self, indices: Tensor) -> Tensor:
        """The task's sums over the samples at `indices`, for the model as it is now."""
        self.task.eval()
        total = torch.zeros(len(self.task.sums), dtype=torch.float64, device=self.vector.device)
        for index, part in enumerate(torch.split(indices, self.local.test_batch_size)):
            if len(part):
                self.between_batches()
                with self.runtime.autocast():
                    total += self.task.test_step(self.data.batch(part, self.vector.device), index)
        return total
