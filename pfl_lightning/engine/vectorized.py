"""Small clients, many of them: one device trains several at a time (`loop.clients_per_step`).

A small model leaves a GPU idle most of the time. So a rank has several live models, whose vectors are the rows of one
tensor. Their clients run in lockstep: each to the point where it trains or needs a gradient. Then they train together
(`engine.joint_training`), or their gradients are computed together with `torch.func`, of batches with the same size.
Algorithms notice nothing of it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from typing_extensions import override

from pfl_lightning.algorithm import Algorithm, Server
from pfl_lightning.comm.ranks import Comm
from pfl_lightning.engine.cohort import Plan
from pfl_lightning.engine.engine import Invitation, VisitResult
from pfl_lightning.engine.joint_exchange import JointExchange
from pfl_lightning.engine.joint_tests import JointTests
from pfl_lightning.engine.joint_training import JointTraining, Rows
from pfl_lightning.engine.lockstep import LockstepClient
from pfl_lightning.engine.pausable import PausableCall
from pfl_lightning.engine.per_sample import require_per_sample
from pfl_lightning.engine.sequential import Sequential
from pfl_lightning.engine.stopwatch import Stopwatch
from pfl_lightning.engine.visit import is_tested, naming_divergence, test_participant
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.model.client import ClientModule
from pfl_lightning.model.layout import Layout
from pfl_lightning.model.local_training import Training
from pfl_lightning.tasks.hooks import TRAINING
from pfl_lightning.tasks.task import Batch, Task, TaskLoss

KEY = "loop.clients_per_step"
Call = PausableCall[Batch | Training, Tensor]


class Vectorized(Sequential):
    """Several clients per step.

    Args:
        count: the number of live models.
        task: the task, on its device.
        make_client: makes a live model of a task, in given memory.
        algorithm: how clients cooperate.
        comm: the ranks.
        channels_last: the order of 4-D tensors in the flat vector.
    """

    def __init__(
        self,
        count: int,
        task: Task,
        make_client: Callable[..., LockstepClient],
        algorithm: Algorithm,
        comm: Comm,
        channels_last: bool,
    ) -> None:
        tasks = [task, *(copy.deepcopy(task) for _ in range(count - 1))]
        for each in tasks[1:]:
            each.hooks.attach_trainer()
        self.layout = Layout.of(task, channels_last)
        like = next(task.parameters())
        self.vectors = torch.empty(count, self.layout.size, dtype=like.dtype, device=like.device)
        self.grads = torch.zeros(count, self.layout.num_parameters, dtype=like.dtype, device=like.device)
        self.clients = [
            make_client(each, memory=(vector, grad))
            for each, vector, grad in zip(tasks, self.vectors, self.grads, strict=True)
        ]
        super().__init__(self.clients[0], algorithm, comm)
        self._loss = TaskLoss(task)
        if self.clients[0].loss_scale:
            raise ConfigError(f"{KEY}: must be 1 with fabric.precision 16-mixed; bf16-mixed has no such limit")
        require_per_sample(task, KEY)
        _refuse_hooks(task)
        for each in tasks:
            each.trained.switch_off()  # steps of several clients are computed as one
        self._try_out()
        self.joint = JointTraining(self.clients, self.vectors, self.grads)
        self.tests = JointTests(self.clients, self.vectors)
        self.exchange = JointExchange(self.vectors, algorithm)
        joins = self._can_join()
        for client in self.clients:
            client.joins = joins

    @override
    def run(self, plan: Plan, invite: Callable[[int], Invitation], server: Server) -> Iterator[Sequence[VisitResult]]:
        sizes, size = self.client.data.train_sizes, len(self.clients)
        mine = sorted(
            plan.clients_of[self.comm.rank], key=lambda number: -int(sizes[number])
        )  # groups of equal clients
        for group in (mine[start : start + size] for start in range(0, len(mine), size)):
            clients = self.clients[: len(group)]
            starts = self.exchange.start(clients, map(invite, group), server)
            together = Stopwatch(self.vectors.device)
            before = self.test(clients, server)
            together.lap("test")
            self.fit(clients, partial(_train, algorithm=self.algorithm, server=server))
            for client in clients:
                client.visits += 1
            together.lap("fit")
            after = self.test(clients, server)
            together.lap("test")
            for start in starts:
                start.watch.add(together, 1 / len(clients))
            yield from self.exchange.end(clients, starts, before, after, server)

    def test(self, clients: Sequence[LockstepClient], server: Server) -> Sequence[Tensor]:
        """The sums of each client's test: at once, if the method and the task have the usual tests."""
        usual = type(self.algorithm).test is Algorithm.test
        if len(clients) > 1 and usual and self.tests.possible and is_tested(clients[0]):
            return self.tests.run([client.test_indices for client in clients]).unbind()
        sums: list[Tensor] = []
        for client in clients:
            with client.own_rng(), naming_divergence(client):
                sums.append(test_participant(client, self.algorithm, server).clone())
        return sums

    def fit(self, clients: Sequence[LockstepClient], work: Callable[[ClientModule], None]) -> None:
        """Call `work` for each of the clients (the first rows of `vectors`) in lockstep."""
        if len(clients) == 1:
            with clients[0].own_rng():
                work(clients[0])
            return
        calls = [
            PausableCall[Batch | Training, Tensor](partial(_work, client, work), client.own_rng) for client in clients
        ]
        answers: dict[int, Tensor] = {}
        try:
            for client, call in zip(clients, calls, strict=True):
                client.call = call
            while not all(call.over for call in calls):
                for row, call in enumerate(calls):
                    if not call.over:
                        call.proceed(answers.get(row))
                    if call.error:
                        raise call.error
                wanted = {row: call.question for row, call in enumerate(calls) if call.question is not None}
                self.joint.run({row: asked for row, asked in wanted.items() if isinstance(asked, Training)})
                answers = self.compute_gradients(
                    {row: asked for row, asked in wanted.items() if not isinstance(asked, Training)}
                )
        finally:
            for client, call in zip(clients, calls, strict=True):
                call.end()
                client.call = None

    def compute_gradients(self, batches: dict[int, Batch]) -> dict[int, Tensor]:
        """Fill the `grad` of some live models, by row, with the gradients of their batches. Returns the losses.

        Models with the same batch shape, trainable parameters and mode are computed together.
        """
        groups: dict[object, list[int]] = {}
        for row, (x, y) in batches.items():
            task = self.clients[row].task
            same = (x.shape, y.shape, task.training, *_position(task), *(p.requires_grad for p in task.parameters()))
            groups.setdefault(same, []).append(row)
        losses: dict[int, Tensor] = {}
        for rows in groups.values():
            if len(rows) == 1:
                losses[rows[0]] = self.clients[rows[0]].backpropagate(batches[rows[0]])
            else:
                losses |= zip(rows, self._together(rows, [batches[row] for row in rows]), strict=True)
        return losses

    def _together(self, rows: list[int], batches: Sequence[Batch]) -> Tensor:
        neighbours = rows[-1] - rows[0] == len(rows) - 1
        where = slice(rows[0], rows[-1] + 1) if neighbours else rows  # a slice is not copied
        first = self.clients[rows[0]]
        trainable = {name for name, p in first.task.named_parameters() if p.requires_grad}
        tensors = self.layout.views(self.vectors[where])
        moving = {f"task.{name}": tensor for name, tensor in tensors.items() if name in trainable}
        fixed = {f"task.{name}": tensor for name, tensor in tensors.items() if name not in trainable}
        self._loss.task = first.task

        def loss(moving: dict[str, Tensor], fixed: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            with first.fabric_.autocast():
                value: Tensor = functional_call(self._loss, {**moving, **fixed}, (x, y))
            return value

        x, y = (torch.stack(parts) for parts in zip(*batches, strict=True))
        gradients, losses = vmap(grad_and_value(loss))(moving, fixed, x, y)
        into = self.grads[where].zero_()
        places = self.layout.views(into)
        for name, gradient in gradients.items():
            places[name.removeprefix("task.")].copy_(gradient)
        if not neighbours:
            self.grads[where] = into
        values: Tensor = losses.detach()
        return values

    def _can_join(self) -> bool:
        """Whether clients can train together: no random changes, and a loss that gives the same sample by sample."""
        first, second = self.clients[:2]
        task, data, initial = first.task, first.data, self.vectors[:2].clone()
        if task.hooks.active or data.may_augment or not task.has_sample_losses:
            return False
        indices = torch.arange(min(4, len(data.samples.y)))
        x, y = data.batch(indices, initial.device)
        weights = torch.zeros(2, len(indices), device=initial.device)
        weights[0], weights[1, 0] = 1 / len(indices), 1.0
        try:
            with first.fork_rng():
                second.vector.mul_(0.5)
                for client, batch in ((first, (x, y)), (second, (x[:1], y[:1]))):
                    client.start_training()
                    client.backpropagate(batch)
                wanted = self.grads[:2].clone()
                Rows(self.joint, slice(0, 2)).compute_gradients(torch.stack([x, x]), torch.stack([y, y]), weights)
            return bool(torch.linalg.norm(self.grads[:2] - wanted) <= 0.05 * torch.linalg.norm(wanted))
        except Exception:
            return False
        finally:
            self.vectors[:2] = initial

    def _try_out(self) -> None:
        """Refuse a net whose gradients differ when they are computed together."""
        first, second = self.clients[:2]
        data, initial = first.data, first.vector.clone()
        batch = data.batch(torch.arange(min(4, len(data.samples.y))), initial.device)
        reason = "its gradients come out wrong"
        try:
            with first.fork_rng():
                second.vector.copy_(initial * 0.5)
                for client in (first, second):
                    client.start_training()
                    client.backpropagate(batch)
                wanted = self.grads[:2].clone()
                if name := first.start.changed():
                    raise RuntimeError(f"its training step sets {name}, which belongs to one client")
                self._together([0, 1], [batch, batch])
            fine = bool(torch.linalg.norm(self.grads[:2] - wanted) <= 0.05 * torch.linalg.norm(wanted))
        except Exception as error:
            fine, reason = False, str(error).strip().partition("\n")[0]
        if not fine:
            kind = type(getattr(first.task, "net", first.task)).__name__
            raise ConfigError(f"{KEY}: must be 1, because several {kind} cannot be computed together: {reason}")
        self.vectors.copy_(initial)


def _refuse_hooks(task: Task) -> None:
    """Refuse hooks that may set attributes: clients computed together share those of one module."""
    if found := [name for name in TRAINING if name in task.hooks.names]:
        kind = type(getattr(task, "net", task)).__name__
        raise ConfigError(f"{KEY}: must be 1, because {kind}.{found[0]} may set values for one client")


def _position(task: Task) -> tuple[int, ...]:
    """The present batch and epoch, which the loss of a user's module may use."""
    trainer = task.hooks.trainer
    return (task.batch_idx, trainer.current_epoch, trainer.global_step) if task.hooks.active else ()


def _train(client: ClientModule, algorithm: Algorithm, server: Server) -> None:
    with naming_divergence(client):
        algorithm.fit(client, server)


def _work(client: ClientModule, work: Callable[[ClientModule], None]) -> None:
    if client.vector.is_cuda:
        torch.cuda.set_device(client.vector.device)  # each thread has a device of its own
    work(client)
