"""Several clients train at once: each step gathers, computes and moves all of them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from pfl_lightning.engine.joint_plan import Turn, chunks, list_batches, list_turns
from pfl_lightning.engine.lockstep import LockstepClient
from pfl_lightning.engine.stacked_net import stacked_outputs
from pfl_lightning.foundation.transfer import send
from pfl_lightning.model.layout import Layout
from pfl_lightning.model.local_training import Training

CHUNK = 4096
"""The number of samples gathered together, for several steps."""
SETTINGS = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")


class JointTraining:
    """Trains live models whose vectors and gradients are rows of two tensors.

    Args:
        clients: the live models.
        vectors: their vectors. # [clients, S]
        grads: their gradients. # [clients, P]
    """

    def __init__(self, clients: Sequence[LockstepClient], vectors: Tensor, grads: Tensor) -> None:
        self.clients, self.layout = clients, clients[0].layout
        self.vectors, self.grads = vectors, grads
        self.velocity: Tensor | None = None

    def run(self, trainings: Mapping[int, Training]) -> None:
        """Make all steps of the trainings of some rows."""
        alike: dict[object, dict[int, Training]] = {}
        for row, training in trainings.items():
            task = self.clients[row].task
            same = (task.training, *(p.requires_grad for p in task.parameters()))
            alike.setdefault(same, {})[row] = training
        for group in alike.values():
            self._run_alike(group)

    def _run_alike(self, trainings: Mapping[int, Training]) -> None:
        settings = common_sgd([self.clients[row] for row in trainings], [t.optimizer for t in trainings.values()])
        if settings and settings["momentum"] and self.velocity is None:
            self.velocity = torch.empty_like(self.grads)
        first = self.clients[next(iter(trainings))]
        device, data = self.vectors.device, first.data
        values, turns = list[Tensor](), list[Turn]()
        batches = {row: list_batches(self.clients[row], training) for row, training in trainings.items()}
        rows = Rows(self, slice(0, 0))
        for chunk in chunks(list_turns(batches), CHUNK):
            turns += chunk
            x, y = data.batch(torch.from_numpy(np.concatenate([turn.indices.ravel() for turn in chunk])), device)
            weights = send(torch.from_numpy(np.concatenate([turn.weights.ravel() for turn in chunk])), device)
            sizes = [turn.indices.size for turn in chunk]
            for turn, *parts in zip(chunk, *(torch.split(part, sizes) for part in (x, y, weights)), strict=True):
                if turn.rows != rows.where:
                    rows = Rows(self, turn.rows)
                for client in rows.clients:
                    client.check_for_stop()
                shape = turn.indices.shape
                values.append(rows.compute_gradients(*(part.view(*shape, *part.shape[1:]) for part in parts)))
                self._step(rows, turn.step, trainings, settings)
        self._record(turns, values)

    def _step(
        self, rows: Rows, step: int, trainings: Mapping[int, Training], settings: Mapping[str, Any] | None
    ) -> None:
        own = [(self.clients[row], trainings[row]) for row in range(rows.where.start, rows.where.stop)]
        for client, training in own:
            if training.on_gradient:
                with client.own_rng():
                    training.on_gradient()
        if settings:
            velocity = None if self.velocity is None else self.velocity[rows.where]
            step_sgd(rows.theta, rows.grads, velocity, step == 0, **settings)
        for _, training in own:
            if not settings:
                training.optimizer.step()
            if training.restore:
                training.restore()

    def _record(self, turns: Sequence[Turn], values: Sequence[Tensor]) -> None:
        """Add the losses and samples of all steps to the clients' totals."""
        if not turns:
            return
        sizes = np.concatenate([turn.sizes for turn in turns])
        rows = np.concatenate([np.arange(turn.rows.start, turn.rows.stop) for turn in turns])
        order = np.argsort(rows, kind="stable")
        device = self.vectors.device
        losses = torch.cat(list(values)) * send(torch.from_numpy(sizes.astype(np.float32)), device)
        found, counts = np.unique(rows, return_counts=True)
        parts = torch.split(losses.double()[send(torch.from_numpy(order), device)], counts.tolist())
        for row, part in zip(found, parts, strict=True):
            client = self.clients[row]
            client.loss_total += part.sum()
            client.samples_seen += int(sizes[rows == row].sum())


class Rows:
    """Neighbouring live models, as tensors of several clients each.

    Args:
        group: all live models.
        where: the rows.
    """

    def __init__(self, group: JointTraining, where: slice) -> None:
        self.where, self.clients = where, group.clients[where]
        layout: Layout = group.layout
        self.theta = group.vectors[where, : layout.num_parameters]
        self.grads = group.grads[where]
        if len(self.clients) < 2:
            return
        self.task = self.clients[0].task
        self.net = f"{self.task.net_name}."
        moving = {name for name, p in self.task.named_parameters() if p.requires_grad}
        self.tensors = {name: view.detach() for name, view in layout.views(group.vectors[where]).items()}
        self.leaves = [view.requires_grad_() for name, view in self.tensors.items() if name in moving]
        self.places = [place for name, place in layout.views(self.grads).items() if name in moving]
        self.whole = len(moving) == len(layout.parameter_spans)
        self.ones = torch.ones(len(self.clients), device=self.grads.device)

    def compute_gradients(self, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Fill the gradients. Returns the losses [clients].

        Args:
            x: inputs. # [clients, batch, ...]
            y: targets. # [clients, batch, ...]
            weights: the weight of each sample in its client's loss. # [clients, batch]
        """
        if len(self.clients) == 1:
            return self.clients[0].backpropagate((x[0], y[0]))[None]
        own = {name.removeprefix(self.net): view for name, view in self.tensors.items() if name.startswith(self.net)}
        with self.clients[0].fabric_.autocast():
            outputs = stacked_outputs(self.task.net, own, x)
            losses = self.task.sample_losses(outputs.flatten(0, 1), y.flatten(0, 1))
        values = (losses.view(weights.shape) * weights).sum(1)
        gradients = torch.autograd.grad(values, self.leaves, self.ones.to(values.dtype), allow_unused=True)
        found = [(place, grad) for place, grad in zip(self.places, gradients, strict=True) if grad is not None]
        if not self.whole or len(found) < len(self.places):
            self.grads.zero_()
        torch._foreach_copy_([place for place, _ in found], [grad for _, grad in found])
        return values.detach()


def common_sgd(clients: Sequence[LockstepClient], optimizers: Sequence[Any]) -> dict[str, Any] | None:
    """The settings of the optimizers if each is plain SGD over a whole model and all are the same. None otherwise."""
    found: list[dict[str, Any]] = []
    for client, wrapped in zip(clients, optimizers, strict=True):
        optimizer: Optimizer = wrapped.optimizer
        if client.flat_optimizer is not optimizer or optimizer._optimizer_step_pre_hooks:
            return None
        found.append({name: optimizer.param_groups[0][name] for name in SETTINGS})
    return found[0] if all(settings == found[0] for settings in found) else None


def step_sgd(
    theta: Tensor,
    grads: Tensor,
    velocity: Tensor | None,
    first: bool,
    *,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    maximize: bool,
) -> None:
    """A step of torch's SGD for several models, in as few operations as there are terms. `grads` stay as they are."""
    change = grads.neg() if maximize else grads
    if weight_decay:
        change = change.add(theta, alpha=weight_decay)
    if momentum:
        assert velocity is not None
        if first:
            velocity.copy_(change)
        else:
            velocity.mul_(momentum).add_(change, alpha=1 - dampening)
        change = change.add(velocity, alpha=momentum) if nesterov else velocity
    theta.add_(change, alpha=-lr)
