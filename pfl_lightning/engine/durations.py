"""How long visits take, learned from earlier visits, so that the ranks of a round finish at the same time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

DECAY = 0.9
"""Exponential decay per round. Machine speed drifts."""


class DurationModel:
    """Estimates the seconds of a visit: a constant, a part per sample, and the client's last deviation.

    Every rank enters the same measurements and makes the same estimates. They decide only which rank trains which
    client, so no result depends on them.
    """

    def __init__(self) -> None:
        self._sums = np.zeros(5)
        self._deviation: dict[int, float] = {}

    def enter(self, clients: Sequence[int], sizes: Sequence[int], seconds: Sequence[float]) -> None:
        """Enter the measured seconds of the visits of a round."""
        x, y = np.array(sizes, dtype=float), np.array(seconds, dtype=float)
        self._sums = DECAY * self._sums + [len(x), x.sum(), y.sum(), (x * x).sum(), (x * y).sum()]
        fitted = self._fitted(sizes)
        self._deviation |= {c: took / f for c, took, f in zip(clients, seconds, fitted, strict=True) if f > 0}

    def estimate(self, clients: Sequence[int], sizes: Sequence[int]) -> list[float]:
        """The expected seconds of visits. Without measurements it returns the sizes."""
        if not self._sums[2]:
            return [float(size) for size in sizes]
        return [self._deviation.get(client, 1.0) * f for client, f in zip(clients, self._fitted(sizes), strict=True)]

    def _fitted(self, sizes: Sequence[int]) -> list[float]:
        """The least-squares line through the measurements, or a line through zero where that makes no sense."""
        n, x, y, xx, xy = self._sums.tolist()
        spread = n * xx - x * x
        slope = (n * xy - x * y) / spread if spread > 1e-9 * n * xx else 0.0
        base = (y - slope * x) / n
        if slope <= 0 or base < 0:
            slope, base = (y / x, 0.0) if x else (0.0, y / n)
        return [base + slope * size for size in sizes]
