"""ADMM unrolled: a pass through its cells, in which clients meet, and the step that learns their settings from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pfl_lightning.algorithm import Uploads
from pfl_lightning.algorithms.parts.admm_cell import Problem, Variables, cell, updater
from pfl_lightning.comm.differentiable_sum import differentiable_sum

SMALLEST = 1e-3
"""Steps and weights do not become smaller than this. Lambda may, its negative values count as 0."""
BETAS = (0.9, 0.999)


@dataclass
class Participant:
    """A client of the round, as the cells see it.

    Its problem holds the client's data and stays with it: the computation runs where the client is, and only rows of
    the sums over clients leave it.
    """

    values: dict[str, Tensor]
    """Its learned settings and their moments, by name."""
    weight: float
    """Its fraction of the total weight of the round."""
    problem: Problem
    start: Variables
    """Where its cells start, each [d]."""
    visits: int
    """How often the client has taken part, this time included."""
    split: tuple[Problem, Problem] | None = None
    """Its problem in two parts of its samples, if the settings are learned on samples that the cells do not see: the
    part of the cells, then the part to learn on."""


def stack(rows: Sequence[Tensor], like: Tensor) -> Tensor:
    """One row per client. No rows, of the shape of `like`, where there is none."""
    return torch.stack(list(rows)) if rows else like.new_empty(0, *like.shape)


def gather_settings(
    participants: Sequence[Participant], initial: Mapping[str, Tensor], learnable: Iterable[str]
) -> dict[str, Tensor]:
    """The settings of this rank's clients, [k, cells, d or 1]; the learned ones want gradients.

    Args:
        participants: this rank's clients, possibly none.
        initial: each setting before it is learned, [cells, d or 1].
        learnable: the settings to learn.
    """
    return {
        name: stack([v.values[name] for v in participants], value).requires_grad_()
        if name in set(learnable)
        else value.expand(len(participants), *value.shape)
        for name, value in initial.items()
    }


def unroll(
    participants: Sequence[Participant],
    settings: Mapping[str, Tensor],
    cells: int,
    uploads: Uploads,
    zero: Tensor,
    problems: Sequence[Problem] | None = None,
) -> Variables:
    """Pass through the cells: every rank must, with clients or without.

    Args:
        participants: this rank's clients.
        settings: as of `gather_settings`. Cells that share their settings have one.
        cells: their number.
        uploads: the uploads of the round.
        zero: zeros [d], for the shape.
        problems: the problems that the cells solve. By default the participants' problems with all their samples.
    """
    at = Variables(*(stack([participant.start[i] for participant in participants], zero) for i in range(4)))
    weight = stack([zero.new_tensor([participant.weight]) for participant in participants], zero[:1])
    add_up = partial(differentiable_sum, uploads)
    update = updater([participant.problem for participant in participants] if problems is None else problems)
    for number in range(cells):
        here = {name: value[:, number % value.shape[1]] for name, value in settings.items()}
        at = cell(at, here, weight, update, add_up)
    return at


def backward(problems: Sequence[Problem], end: Variables) -> None:
    """Pass back from the sum of all clients' losses: every rank must, with clients or without."""
    losses = [problem.loss(v) for problem, v in zip(problems, end.v, strict=True)]
    total = torch.stack(losses).sum() if losses else end.v.sum()
    if total.requires_grad:
        total.backward()  # type: ignore[no-untyped-call]


def learn(
    participants: Sequence[Participant], settings: Mapping[str, Tensor], learnable: Iterable[str], lr: float, eps: float
) -> dict[str, Tensor]:
    """A step of Adam for the learned settings: their new values and moments, a row per client.

    The moments are each client's own and count its visits. Every operation is rounded the same way wherever a client
    stands among the rows.
    """
    news: dict[str, Tensor] = {}
    for name in learnable:
        value = settings[name].detach()
        gradient = settings[name].grad
        gradient = torch.zeros_like(value) if gradient is None else gradient
        old = stack([v.values[f"{name} moments"] for v in participants], value.new_empty(2, *value.shape[1:]))
        first = BETAS[0] * old[:, 0] + (1 - BETAS[0]) * gradient
        second = BETAS[1] * old[:, 1] + (1 - BETAS[1]) * gradient * gradient
        unbias = (value.new_tensor([1 - beta**v.visits for v in participants]).view(-1, 1, 1) for beta in BETAS)
        step = first / next(unbias) / ((second / next(unbias)).sqrt() + eps)
        value = value - lr * step
        news[name] = value if name == "Lambda" else value.clamp(min=SMALLEST)
        news[f"{name} moments"] = torch.stack([first, second], 1)
    return news
