"""Who works with whom: clients whose critical parameters overlap form groups, ever more choosily (FedCAC, FedPURIN)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from pfl_lightning.comm import Comm


def overlap_matrix(local: Mapping[int, Tensor], like: Tensor, comm: Comm) -> Tensor:
    """O_ij = 1 − |m_i − m_j| / (2 n_i), n_i = entries of m_i, in the order of the cohort, the same on every rank.

    Not symmetric where sizes differ. For an empty m_i: 1 when m_j is empty too, else 0. Masks travel packed, one at a
    time; each rank compares its own clients with all, in whole numbers, so nothing depends on the number of ranks.

    Args:
        local: this rank's clients and their packed masks.
        like: a packed mask of the same length.
        comm: the collectives of the round.

    Returns:
        float64 [k, k], on the CPU.
    """
    counts = {client: [count_bits(mask)] for client, mask in local.items()}
    for _, other in comm.each(local, like):
        for client, mask in local.items():
            counts[client].append(count_bits(mask ^ other))
    row = torch.zeros(1 + len(comm.cohort), dtype=torch.int64, device=like.device)
    table = comm.table({client: torch.tensor(count, device=row.device) for client, count in counts.items()}, row).cpu()
    size, different = table[:, :1].double(), table[:, 1:].double()
    return torch.where(size > 0, 1 - different / (2 * size), (different == 0).double())


def partners(overlap: Tensor, round_: int, beta: int) -> Tensor:
    """Whose models each client is grouped with, bool [k, k], itself not counted. After round `beta` nobody's."""
    others = ~torch.eye(len(overlap), dtype=torch.bool)
    if round_ > beta or len(overlap) < 2:
        return torch.zeros_like(others)
    return (overlap >= threshold(overlap[others].tolist(), round_, beta)) & others


def threshold(overlaps: list[float], round_: int, beta: int) -> float:
    """Rises from the average of all pairs' overlaps to the largest: avg + (t/β)(max − avg), for t ≤ β.

    Written from above and capped, so that rounding cannot lift it over the largest overlap when all are equal.
    """
    largest, average = max(overlaps), math.fsum(overlaps) / len(overlaps)
    return min(largest, largest - (1 - round_ / beta) * (largest - average))


def group_weights(partner: Tensor) -> Tensor:
    """Each row the plain mean over a client and its partners, float64 [k, k]; zero for a client that has none."""
    member = partner | torch.diag(partner.any(1))
    return member.double() / member.sum(1, keepdim=True).clamp(min=1)


def count_bits(packed: Tensor) -> int:
    """How many bits of a uint8 tensor are set."""
    pairs = packed - ((packed >> 1) & 0x55)
    nibbles = (pairs & 0x33) + ((pairs >> 2) & 0x33)
    return int(((nibbles + (nibbles >> 4)) & 0x0F).sum())
