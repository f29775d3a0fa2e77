"""Who works with whom: clients whose critical parameters overlap form groups, ever more choosily (FedCAC, FedPURIN)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pfl_lightning.algorithm import Uploads


def overlap_matrix(uploads: Uploads, like: Tensor) -> Tensor:
    """O_ij = 1 − |m_i − m_j| / (2 n_i), n_i = entries of m_i, in the order of the cohort: float64 [k, k] on the CPU.

    It is not symmetric where sizes differ. For an empty m_i it is 1 when m_j is empty too, else 0. Each upload has its
    packed mask in `extra["critical"]`.

    Args:
        uploads: the uploads of the round.
        like: a packed mask of the same length.
    """
    different = uploads.pairwise("critical", "critical", like, lambda a, b: torch.tensor(float(count_bits(a ^ b))))
    counts = {c: torch.tensor(float(count_bits(u.extra["critical"]))) for c, u in uploads.local.items()}
    size = uploads.gather_rows(counts, torch.zeros((), dtype=torch.float64))[:, None]
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
    """Each row the plain mean over a client and its partners, float64 [k, k]. Zero for a client without partners."""
    member = partner | torch.diag(partner.any(1))
    return member.double() / member.sum(1, keepdim=True).clamp(min=1)


def count_bits(packed: Tensor) -> int:
    """How many bits of a uint8 tensor are set."""
    pairs = packed - ((packed >> 1) & 0x55)
    nibbles = (pairs & 0x33) + ((pairs >> 2) & 0x33)
    return int(((nibbles + (nibbles >> 4)) & 0x0F).sum())
