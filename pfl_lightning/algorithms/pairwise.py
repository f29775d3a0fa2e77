"""Every client of a round against every other: a small table that all ranks share, made without gathering models."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pfl_lightning.comm import Comm
from pfl_lightning.exact_mean import CHUNK


def pairwise(
    rows: Mapping[int, Tensor],
    columns: Mapping[int, Tensor],
    like: Tensor,
    measure: Callable[[Tensor, Tensor], Tensor],
    comm: Comm,
) -> Tensor:
    """`measure(rows[i], columns[j])` for all i, j of the cohort: float64 [k, k], the same on every rank.

    Columns travel one at a time and each rank measures its own rows, so a rank holds its own clients' tensors and one
    more. Each number is computed once, on one rank, so nothing depends on how many there are.

    Args:
        rows: this rank's clients and their tensors.
        columns: the same clients and what the others are measured with.
        like: a tensor of a column's shape and type.
        measure: a number, float64, of two tensors.
        comm: the collectives of the round.
    """
    table = {client: torch.zeros(len(comm.cohort), dtype=torch.float64, device=like.device) for client in rows}
    for column, (_, other) in enumerate(comm.each(columns, like)):
        for client, own in rows.items():
            table[client][column] = measure(own, other)
    return comm.table(table, torch.zeros(len(comm.cohort), dtype=torch.float64, device=like.device)).cpu()


def dot(a: Tensor, b: Tensor) -> Tensor:
    """⟨a, b⟩ in float64, by chunks: a float32 sum over millions of entries would lose half of its digits."""
    parts = zip(torch.split(a.reshape(-1), CHUNK), torch.split(b.reshape(-1), CHUNK), strict=True)
    return torch.stack([(x.double() * y.double()).sum() for x, y in parts]).sum()


def squared_distance(a: Tensor, b: Tensor) -> Tensor:
    """‖a − b‖² in float64, by chunks. The difference itself, since ‖a‖² + ‖b‖² − 2⟨a, b⟩ cancels."""
    parts = zip(torch.split(a.reshape(-1), CHUNK), torch.split(b.reshape(-1), CHUNK), strict=True)
    return torch.stack([(x.double() - y.double()).square().sum() for x, y in parts]).sum()
