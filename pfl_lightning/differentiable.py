"""A sum over all clients that gradients flow through, between ranks too, with the same bits on any number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.autograd import Function
from typing_extensions import override

from pfl_lightning.comm import Comm
from pfl_lightning.exact_mean import CHUNK


def differentiable_sum(comm: Comm, rows: Tensor, clients: Sequence[int]) -> Tensor:
    """Add up one row per client of the cohort and give each client of this rank a copy of the sum.

    What depends on a copy sends its gradient back to the rows of all clients, on whatever rank they are: backward is
    the same sum. Every rank must call it, and run the backward pass, also with no rows at all (a graph of empty
    tensors will do). Rows are gathered and added in the order of the cohort: the traffic is that of all rows, not of
    one, and the bits are the same for any number of ranks.

    Args:
        comm: the ranks.
        rows: float64 [k, n], one row for each of `clients`.
        clients: this rank's clients.

    Returns:
        [k, n], every row the same.
    """
    total: Tensor = _Sum.apply(rows, comm, clients)
    return total


class _Sum(Function):
    @staticmethod
    @override
    def forward(ctx: Any, rows: Tensor, comm: Comm, clients: Sequence[int]) -> Tensor:
        ctx.comm, ctx.clients = comm, clients
        return _add_up(comm, rows, clients)

    @staticmethod
    @override
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _add_up(ctx.comm, gradients[0], ctx.clients), None, None


def _add_up(comm: Comm, rows: Tensor, clients: Sequence[int]) -> Tensor:
    total = rows.new_empty(rows.shape[1])
    width = max(1, CHUNK // max(1, len(comm.cohort)))  # bounds the memory of the gathered rows
    for start in range(0, rows.shape[1], width):
        part = rows[:, start : start + width]
        gathered = comm.table(dict(zip(clients, part, strict=True)), like=total[start : start + width])
        total[start : start + width] = gathered.sum(0)
    return total.expand(len(clients), -1).clone()
