"""Regression problems whose regularised minimum is found directly, for several clients together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from typing_extensions import override


@dataclass
class LeastSquares:
    """Regression, F = ½ ‖X v − Y‖²: the minimum is found directly (Eq. 10 of Learn2pFed).

    Args:
        x: features [n, k], a column of ones for the bias included.
        y: targets [n, outputs].
        bias: whether there is one.
    """

    x: Tensor
    y: Tensor
    bias: bool

    def __post_init__(self) -> None:
        """The client's data comes in by these two products only."""
        self.x, self.y = self.x.double(), self.y.double()
        self.gram, self.moment = self.x.T @ self.x, self.x.T @ self.y

    def update(self, v: Tensor, target: Tensor, rho: Tensor) -> Tensor:
        """(XᵀX + ρI)⁻¹ (ρ target + XᵀY), by Cholesky."""
        return solve_together([self])(v[None], target[None], rho[None])[0]

    def loss(self, v: Tensor) -> Tensor:
        """Mean squared error."""
        return (self.x @ _columns(v[None], self.y.shape[1], self.bias)[0] - self.y).square().mean()


def solve_together(problems: Sequence[LeastSquares]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """`LeastSquares.update` for a row per client. LAPACK solves matrix by matrix: the bits are those of one alone."""
    gram, moment = (torch.stack(parts) for parts in zip(*((p.gram, p.moment) for p in problems), strict=True))
    bias, outputs = problems[0].bias, moment.shape[2]

    def update(v: Tensor, target: Tensor, rho: Tensor) -> Tensor:
        right = rho[:, :, None] * _columns(target, outputs, bias) + moment
        solution: Tensor = _Solve.apply(gram, rho, right)
        return _flat(solution, bias)

    return update


class _Solve(Function):
    """(A + ρI)⁻¹ b with its derivatives in ρ and b, which need one more solve with the same factor."""

    @staticmethod
    @override
    def forward(ctx: Any, gram: Tensor, rho: Tensor, right: Tensor) -> Tensor:
        system = gram + rho[:, :, None] * torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
        # no error for an indefinite matrix: other ranks would wait for this one
        factor = torch.linalg.cholesky_ex(system).L
        solution = torch.cholesky_solve(right, factor)
        ctx.save_for_backward(factor, solution)
        return solution

    @staticmethod
    @override
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, Tensor]:
        factor, solution = ctx.saved_tensors
        back = torch.cholesky_solve(gradients[0], factor)
        return None, -(back * solution).flatten(1).sum(1, keepdim=True), back


def _columns(v: Tensor, outputs: int, bias: bool) -> Tensor:
    """Flat models [c, d], weight [outputs x features] and bias, to columns [c, features (+ 1), outputs]."""
    at = v.shape[1] - outputs * bias
    weight, offset = v[:, :at].reshape(len(v), outputs, at // outputs), v[:, at:].reshape(len(v), outputs, int(bias))
    return torch.cat([weight, offset], 2).mT


def _flat(columns: Tensor, bias: bool) -> Tensor:
    """The reverse of `_columns`."""
    split = columns.shape[1] - bias
    return torch.cat([columns[:, :split].mT.flatten(1), columns[:, split:].flatten(1)], 1)
