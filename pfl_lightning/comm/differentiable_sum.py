"""A sum over all clients that gradients flow through, also between ranks, with the same bits on any number of ranks."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function
from typing_extensions import override

from pfl_lightning.comm.exact_mean import CHUNK
from pfl_lightning.comm.uploads import Uploads


def differentiable_sum(uploads: Uploads, rows: Tensor) -> Tensor:
    """Add up one row per client of the cohort and give each client of this rank a copy of the sum.

    A copy sends its gradient back to the rows of all clients, on any rank: the backward pass is the same sum. Every
    rank must call it and run the backward pass, even without rows (a graph of empty tensors is enough). Rows are
    gathered and added in the order of the cohort. The traffic is all rows, and the bits are the same for any
    number of ranks.

    Args:
        uploads: the uploads of the round.
        rows: float64 [k, n], one row for each client in `uploads.local`.

    Returns:
        [k, n], every row the same.
    """
    total: Tensor = _Sum.apply(rows, uploads)
    return total


class _Sum(Function):
    @staticmethod
    @override
    def forward(ctx: Any, rows: Tensor, uploads: Uploads) -> Tensor:
        ctx.uploads = uploads
        return _add_up(uploads, rows)

    @staticmethod
    @override
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _add_up(ctx.uploads, gradients[0]), None


def _add_up(uploads: Uploads, rows: Tensor) -> Tensor:
    total = rows.new_empty(rows.shape[1])
    width = max(1, CHUNK // max(1, len(uploads.cohort)))  # bounds the memory of the gathered rows
    for start in range(0, rows.shape[1], width):
        part = rows[:, start : start + width]
        gathered = uploads.gather_rows(dict(zip(uploads.local, part, strict=True)), total[start : start + width])
        total[start : start + width] = gathered.sum(0)
    return total.expand(len(uploads.local), -1).clone()
