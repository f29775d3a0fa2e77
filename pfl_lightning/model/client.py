"""A client: the task, its personalization mask, its memory, and how it trains and is tested.

A rank has one live `ClientModule` (or a few, see `engine.vectorized`). Clients are states loaded into it, so
memory does not grow with their number.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from lightning.fabric import Fabric
from torch import Tensor

from pfl_lightning.data.federated import FederatedData
from pfl_lightning.foundation.seeds import derive_seed
from pfl_lightning.foundation.signals import StopSignals
from pfl_lightning.foundation.state import State
from pfl_lightning.foundation.transfer import to_device, to_host
from pfl_lightning.model import masks
from pfl_lightning.model.flat_model import FlatModel
from pfl_lightning.model.local_training import LocalTraining, Training, split_batches
from pfl_lightning.model.start_state import StartState
from pfl_lightning.model.training_run import ensure_started, hooked_batches
from pfl_lightning.tasks.task import Batch, Task

TRIAL_SAMPLES = 4
MEMORY = "memory/"
"""Prefix of the algorithm's entries in a client state. The package's own entries (visits, mask, personal) have none."""


class ClientModule(FlatModel):
    """The client that is being visited: a live model, the client's data and its memory.

    Attributes:
        mask: bool [S], True = personal. Personal entries are kept between visits.
        memory: tensors that the algorithm keeps for this client between visits.
        stop, on_stop: whether this process was asked to stop, and the function that then leaves the round.
        id, round, visits: the client's number, the present round, and how often the client was trained before.
        weight: the client's fraction of the total weight of the round.
        train_indices, test_indices: the samples that it trains on, and those that test it.
    """

    mask: Tensor

    def __init__(
        self,
        task: Task,
        data: FederatedData,
        local: LocalTraining,
        fabric: Fabric,
        seed: int,
        stop: StopSignals | None = None,
        on_stop: Callable[[], None] = lambda: None,
        memory: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        super().__init__(task, fabric, local.channels_last, memory)
        self.register_buffer("mask", torch.zeros(self.layout.size, dtype=torch.bool, device=self.vector.device))
        self.data, self.local, self.seed = data, local, seed
        self.stop, self.on_stop = stop or StopSignals(), on_stop
        self.memory: dict[str, Tensor] = {}
        self.id, self.round, self.visits, self.weight = -1, 0, 0, 0.0
        self._counted: tuple[Tensor, int, int] | None = None
        self.loss_total, self.samples_seen = torch.zeros((), dtype=torch.float64, device=self.vector.device), 0
        self.train_indices = self.test_indices = torch.empty(0, dtype=torch.int64)
        self.finetune_rate: float | None = None
        self.tests_may_share: bool | None = None  # what `engine.shared_tests` found out. None: not tried yet
        self.start = StartState(task, self.layout)
        self._try_out()

    def _try_out(self) -> None:
        """Let the task see a few samples. Nothing of it remains."""
        if type(self.task).try_out is Task.try_out:
            return
        vector = self.vector.clone()
        samples = torch.arange(min(TRIAL_SAMPLES, len(self.data.samples.y)))
        with self.fork_rng():
            self.task.try_out(self.data.batch(samples, self.vector.device), self.fabric_.autocast)
        self.start.restore()
        self.vector.copy_(vector)

    @property
    def num_samples(self) -> int:
        """The number of samples that the client trains on."""
        return len(self.train_indices)

    def load_state(self, client: int, round_: int, state: State | None, initial: Tensor) -> None:
        """Become client `client` with its state. A client without a state starts from the common initial model."""
        self.id, self.round = client, round_
        self.train_indices, self.test_indices = self.data.train_indices(client), self.data.test_indices(client)
        self.samples_seen = 0
        self.loss_total.zero_()
        if self.loss_scale:
            self.loss_scale.reset()
        if not self.start.empty:
            self.start.restore()
        self.epoch_schedules.clear()
        self.rate_factor = self.local.lr_factor(round_) if self.local.lr_factor else 1.0
        self.finetune_rate = None
        self.vector.copy_(initial)
        self.mask.zero_()
        self.memory, self.visits = {}, 0
        if state is not None:
            self.visits = int(state["visits"])
            self._unpack(to_device({name: t for name, t in state.items() if name != "visits"}, self.vector.device))
        seed = derive_seed(self.seed, "client", round_, client)
        self.seed_rng(seed)
        self.task.hooks.trainer.started = False
        if self.task.hooks.active:
            self.task.trained.start()
            # code of a user's may draw from these as well
            random.seed(seed)
            np.random.seed(seed % 2**32)

    def _unpack(self, state: State) -> None:
        self.memory = {name.removeprefix(MEMORY): t for name, t in state.items() if name.startswith(MEMORY)}
        if "mask" in state:
            self.mask.copy_(masks.unpack(state["mask"], self.layout.size))
            if self.vector.is_cuda:
                self.vector.masked_scatter_(self.mask, state["personal"])
            else:
                self.vector[masks.indices(self.mask)] = state["personal"]

    def dump_state(self) -> State:
        """Everything the client keeps until its next visit: personal entries, mask, memory. Nothing is aliased."""
        state = {MEMORY + name: tensor for name, tensor in self.memory.items()}
        state["visits"] = torch.tensor(self.visits)
        if count := self.count_personal():
            state["mask"] = masks.pack(self.mask)
            state["personal"] = self.vector[masks.indices(self.mask, count)]
        return to_host(state)

    def count_personal(self) -> int:
        """The number of personal entries. It is counted once for each change of the mask."""
        now = self.mask._version
        if self._counted is None or self._counted[0] is not self.mask or self._counted[1] != now:
            self._counted = self.mask, now, masks.count(self.mask)
        return self._counted[2]

    def know_personal(self, count: int) -> None:
        """Take a count of the present mask that is known already, so that nothing counts it again."""
        self._counted = self.mask, self.mask._version, count

    def receive(self, vector: Tensor) -> None:
        """Take all entries from `vector` [S], except the personal ones."""
        if self.count_personal():
            masks.merge(self.vector, self.mask, vector)
        else:
            self.vector.copy_(vector)

    def order(self, epoch: str, fraction: float = 1.0) -> Tensor:
        """The samples of one pass over the training data, or a fraction of it (rounded up), in their order."""
        indices = self.train_indices
        shuffle = torch.Generator().manual_seed(derive_seed(self.seed, "shuffle", self.round, self.id, epoch))
        order = indices.numpy()[torch.randperm(len(indices), generator=shuffle).numpy()]
        return torch.from_numpy(order[: math.ceil(fraction * len(indices))])

    def batches(self, epoch: str, fraction: float = 1.0) -> Iterator[Batch]:
        """Yield the client's training data, or a fraction of it (rounded up), in batches.

        The order and the choice of samples depend on (seed, round, client, epoch) only.
        """
        if self.task.hooks.active:
            ensure_started(self.task)
        order = self.data.place_indices(self.order(epoch, fraction))
        for step, batch in enumerate(split_batches(order, self.local.batch_size)):
            if len(batch):
                self.check_for_stop()
                seed = ("augment", self.round, self.id, epoch, step)
                augment = derive_seed(self.seed, *seed) if self.data.augments else None
                yield self.data.batch(batch, self.vector.device, augment)

    def check_for_stop(self) -> None:
        """Called before every batch. A rank that was asked to stop leaves the round here."""
        if self.stop.seen:
            self.on_stop()

    def iter_batches(self, epochs: int | None = None, stream: str = "", steps: int | None = None) -> Iterator[Batch]:
        """Yield the batches of several passes over the training data.

        Args:
            epochs: number of passes. Default: the configured `local_epochs`.
            stream: names the order of the batches, for methods that train several times at a visit.
            steps: number of batches, in as many passes as that takes. It replaces `epochs`.
        """
        epochs = self.local.epochs if epochs is None else epochs
        numbers: Iterable[int] = range(epochs) if steps is None else itertools.count()
        passes = (self.batches(f"{stream}{epoch}") for epoch in numbers)
        if not self.num_samples or (not epochs if steps is None else not steps):
            self.epoch_schedules.clear()
        elif self.task.hooks.active or self.epoch_schedules:
            yield from hooked_batches(self, self.start, passes, steps)
        else:
            yield from itertools.islice((batch for batches in passes for batch in batches), steps)

    def record_step(self, loss: Tensor, batch: Batch) -> None:
        """Count a training step: its loss and its samples."""
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
        """Train locally with a fresh optimizer.

        Args:
            epochs: passes over the training data. Default: the configured `local_epochs`.
            loss: the loss of a batch, mean over samples. Default: the task's.
            on_gradient: called between backward and the optimizer's step. It may change `grad` in place.
            entries: bool [P]. Only these parameters move. Momentum and weight decay do not move the others either.
            stream: names the order of the batches, for methods that train several times at a visit.
            steps: number of steps, instead of epochs.
            lr: a learning rate for this training. Default: the optimizer's.
        """
        self.start_training()
        optimizer = self.fresh_optimizer(lr if self.finetune_rate is None else self.finetune_rate)
        restore = masks.restorer(self.theta, entries) if entries is not None else None
        self.take_steps(Training(optimizer, loss, on_gradient, restore, epochs, stream, steps))

    def take_steps(self, training: Training) -> None:
        """Make the steps of a training."""
        for batch in self.iter_batches(training.epochs, training.stream, training.steps):
            value = self.compute_gradient(batch, training.loss)
            if training.on_gradient:
                training.on_gradient()
            training.optimizer.step()
            if training.restore:
                training.restore()
            self.record_step(value, batch)

    def test(self) -> Tensor:
        """The task's sums over the client's test data, for the present model."""
        return self.test_on(self.test_indices)

    @torch.no_grad()
    def test_on(self, indices: Tensor) -> Tensor:
        """The task's sums over the samples at `indices`, for the present model."""
        self.task.eval()
        return self.task.test_sums(self._batches_at(indices), self.fabric_.autocast)

    @torch.no_grad()
    def test_each(self, parts: Sequence[Tensor]) -> Tensor:
        """The task's sums over the samples at each of `parts`, for the present model: float64 [parts, sums].

        The parts share batches, and the result is on the CPU. The task must have `sample_sums`.
        """
        self.task.eval()
        sums: list[Tensor] = []
        for batch in self._batches_at(torch.cat(list(parts))):
            with self.fabric_.autocast():
                sums.append(self.task.sample_sums(batch))
        if not sums:
            return torch.zeros(len(parts), len(self.task.sums), dtype=torch.float64)
        lengths = torch.tensor([len(part) for part in parts])
        return torch.segment_reduce(torch.cat(sums).cpu(), "sum", lengths=lengths, initial=0.0)

    def _batches_at(self, indices: Tensor) -> Iterator[Batch]:
        for part in torch.split(indices, self.local.test_batch_size):
            if len(part):
                self.check_for_stop()
                yield self.data.batch(part, self.vector.device)
