"""Small clients, many of them: one device trains several at a time (`loop.clients_per_step`).

A small model leaves a GPU idle most of the time. So a rank has several live models, whose vectors are the rows of one
tensor. Their clients are trained in step: each goes on to the point where it wants a gradient, then the gradients of
all are computed at once with `torch.func`. Nothing is padded: of clients whose last batches differ in size, those with
equal ones are put together. Algorithms notice nothing of it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence

import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from pfl_lightning.client import ClientModule, LocalTraining
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.errors import ConfigError
from pfl_lightning.live_model import LiveModel, Loss
from pfl_lightning.lockstep import Turn
from pfl_lightning.sample_wise import require_sample_wise
from pfl_lightning.tasks.task import Batch, Task, TaskLoss
from pfl_lightning.vector import Layout

KEY = "loop.clients_per_step"


class SideBySide:
    """The live models of a rank.

    Args:
        count: how many there are; of one, nothing is different from an ordinary `ClientModule`.
        task: what is learned, on its device.
        data: who has what.
        local: how a client trains.
        fabric: where it runs.
        seed: of the run.
    """

    def __init__(
        self, count: int, task: Task, data: FederatedData, local: LocalTraining, fabric: Fabric, seed: int
    ) -> None:
        tasks = [task, *(copy.deepcopy(task) for _ in range(count - 1))]
        self.layout = Layout.of(task, local.channels_last)
        like = next(task.parameters())
        self.vectors = torch.empty(count, self.layout.size, dtype=like.dtype, device=like.device)
        self.grads = torch.zeros(count, self.layout.num_parameters, dtype=like.dtype, device=like.device)
        self.clients = [
            ClientModule(each, data, local, fabric, seed, rows)
            for each, rows in zip(tasks, zip(self.vectors, self.grads, strict=True), strict=True)
        ]
        self._loss = TaskLoss(task)
        if count > 1:
            if self.clients[0].loss_scale.on:
                raise ConfigError(f"{KEY}: must be 1 with fabric.precision 16-mixed; bf16-mixed has no such limit")
            require_sample_wise(task, KEY)
            self._try_out(data)

    def split(self, clients: Sequence[int]) -> Iterator[Sequence[int]]:
        """These clients, as many at a time as there are live models."""
        for start in range(0, len(clients), len(self.clients)):
            yield clients[start : start + len(self.clients)]

    def fit(self, clients: Sequence[ClientModule], work: Callable[[ClientModule], None]) -> None:
        """Do `work` for each of these clients (the first so many of `clients`), in step."""
        if len(clients) == 1:
            with clients[0].own_random():
                work(clients[0])
            return
        turns = [self._turn(client, work) for client in clients]
        answers: dict[int, Tensor] = {}
        try:
            while not all(turn.over for turn in turns):
                for row, turn in enumerate(turns):
                    if not turn.over:
                        turn.proceed(answers.get(row))
                    if turn.error:
                        raise turn.error
                wanted = {row: turn.question for row, turn in enumerate(turns) if turn.question is not None}
                answers = self.compute_gradients(wanted)
        finally:
            for client, turn in zip(clients, turns, strict=True):
                turn.end()
                client.gradient_by = LiveModel.backpropagate

    def compute_gradients(self, batches: dict[int, Batch]) -> dict[int, Tensor]:
        """Fill the `grad` of some live models, by row, with the gradients for their batches; returns the losses.

        Those whose batches, trainable parameters and mode are alike are computed at once.
        """
        groups: dict[object, list[int]] = {}
        for row, (x, y) in batches.items():
            task = self.clients[row].task
            alike = (x.shape, y.shape, task.training, tuple(p.requires_grad for p in task.parameters()))
            groups.setdefault(alike, []).append(row)
        losses: dict[int, Tensor] = {}
        for rows in groups.values():
            if len(rows) == 1:
                losses[rows[0]] = self.clients[rows[0]].backpropagate(batches[rows[0]])
            else:
                losses |= zip(rows, self._at_once(rows, [batches[row] for row in rows]), strict=True)
        return losses

    def _at_once(self, rows: list[int], batches: Sequence[Batch]) -> Tensor:
        neighbours = rows[-1] - rows[0] == len(rows) - 1
        where = slice(rows[0], rows[-1] + 1) if neighbours else rows  # a slice is not copied
        first = self.clients[rows[0]]
        trainable = {name for name, p in first.task.named_parameters() if p.requires_grad}
        tensors = self.layout.views(self.vectors[where])
        moving = {f"task.{name}": tensor for name, tensor in tensors.items() if name in trainable}
        fixed = {f"task.{name}": tensor for name, tensor in tensors.items() if name not in trainable}
        self._loss.task = first.task

        def loss(moving: dict[str, Tensor], fixed: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            with first.runtime.autocast():
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

    def _turn(self, client: ClientModule, work: Callable[[ClientModule], None]) -> Turn[Batch, Tensor]:
        def run() -> None:
            if client.vector.is_cuda:
                torch.cuda.set_device(client.vector.device)  # each thread has a device of its own
            work(client)

        turn = Turn[Batch, Tensor](run, client.own_random)

        def gradient(model: LiveModel, batch: Batch, loss: Loss | None = None) -> Tensor:
            """An algorithm's own loss may do anything: it is computed at once, for this client alone."""
            return turn.ask(batch) if loss is None else model.backpropagate(batch, loss)

        client.gradient_by = gradient
        return turn

    def _try_out(self, data: FederatedData) -> None:
        """Refuse a net for which gradients that are computed at once are not those computed one by one."""
        first, second = self.clients[:2]
        initial = first.vector.clone()
        batch = data.batch(torch.arange(min(4, len(data.samples.y))), initial.device)
        reason = "its gradients come out wrong"
        try:
            with first.rewinding():
                second.vector.copy_(initial * 0.5)
                for client in (first, second):
                    client.start_training()
                    client.backpropagate(batch)
                wanted = self.grads[:2].clone()
                self._at_once([0, 1], [batch, batch])
            fine = bool(torch.linalg.norm(self.grads[:2] - wanted) <= 0.05 * torch.linalg.norm(wanted))
        except Exception as error:
            fine, reason = False, str(error).strip().partition("\n")[0]
        if not fine:
            kind = type(getattr(first.task, "net", first.task)).__name__
            raise ConfigError(f"{KEY}: must be 1, since several {kind} cannot be computed at once: {reason}")
        self.vectors.copy_(initial)
