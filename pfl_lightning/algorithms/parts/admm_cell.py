"""The cell that Learn2pFed repeats: one iteration of ADMM (Eq. 9-12), differentiable in all its settings.

It minimises Σ F_i(v_i) + z_iᵀ Λ_i z_i with z_i = v_i − w. Tensors have a row for each client of this rank, in float64.
A rank without clients has empty ones, whose graph holds the same sums over ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.func import grad
from torch.nn.functional import cross_entropy, linear

from pfl_lightning.algorithms.parts.least_squares import LeastSquares, solve_together


class Variables(NamedTuple):
    """The variables that pass from cell to cell, each [k, d]. The rows of w are all the same."""

    v: Tensor
    """The clients' models."""
    z: Tensor
    """How far they may be from the global one."""
    alpha: Tensor
    """The multipliers of z = v − w, scaled."""
    w: Tensor
    """The global model."""


Update = Callable[[Tensor, Tensor, Tensor], Tensor]


class Problem(Protocol):
    """A client's own loss F and how its model is improved. The model is a flat weight [outputs x features], bias."""

    def update(self, v: Tensor, target: Tensor, rho: Tensor) -> Tensor:
        """Bring v [d] nearer to the minimum of F(v) + rho/2 ‖v − target‖²."""

    def loss(self, v: Tensor) -> Tensor:
        """The training loss of v [d], mean over samples."""


@dataclass
class CrossEntropy:
    """Classification: one step of gradient descent on F(v) + ρ/2 ‖v − target‖² (Eq. 14).

    Args:
        x: features [n, k].
        y: classes [n].
        outputs: number of classes.
        lr: size of the step.
    """

    x: Tensor
    y: Tensor
    outputs: int
    lr: float | Tensor

    def update(self, v: Tensor, target: Tensor, rho: Tensor) -> Tensor:
        """Go from v by −lr (∇F(v) + ρ (v − target))."""
        gradient: Tensor = grad(self.loss)(v)
        return v - self.lr * (gradient + rho * (v - target))

    def loss(self, v: Tensor) -> Tensor:
        """Cross-entropy, computed in the precision of the features."""
        at = self.outputs * self.x.shape[1]
        weight, bias = v[:at].view(self.outputs, -1), v[at:]
        logits = linear(self.x, weight.to(self.x.dtype), bias.to(self.x.dtype) if len(bias) else None)
        return cross_entropy(logits, self.y).double()


def cell(
    at: Variables,
    settings: Mapping[str, Tensor],
    weight: Tensor,
    update: Update,
    add_up: Callable[[Tensor], Tensor],
) -> Variables:
    """One iteration, in the order α, v, z, w.

    Args:
        at: where the cell before has ended.
        settings: `Lambda` [k, d] and `rho`, `eta`, `gamma`, `theta`, `p` [k, 1].
        weight: each client's weight in the mean, in addition to p [k, 1].
        update: the step of v, see `updater`.
        add_up: sums rows over all clients, giving every one a copy.
    """
    rho, eta, gamma, theta, p = (settings[name] for name in ("rho", "eta", "gamma", "theta", "p"))
    alpha = at.alpha + theta * (at.z - at.v + at.w)
    v = update(at.v, at.w + at.z + alpha, rho)
    z = eta / (torch.relu(settings["Lambda"]) + eta) * (v - at.w - alpha)
    share = weight * p * gamma
    total = add_up(torch.cat([share * (v - z - alpha), share], 1))
    return Variables(v, z, alpha, total[:, :-1] / total[:, -1:])


def updater(problems: Sequence[Problem]) -> Update:
    """The step of v for several clients: v [k, d], targets [k, d] and rho [k, 1] to the next v [k, d].

    The numbers of a client do not depend on the other clients of this rank.
    """
    if not problems:
        return lambda v, target, rho: v + rho * target
    linear_ones = [problem for problem in problems if isinstance(problem, LeastSquares)]
    if len(linear_ones) == len(problems):
        return solve_together(linear_ones)
    return lambda *rows: torch.stack([problem.update(*row) for problem, *row in zip(problems, *rows, strict=True)])
