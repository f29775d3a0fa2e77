"""How long clients take, learned from their visits, so that the ranks of a round end at the same time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FORGETTING = 0.9
"""What a round counts for after the next one: machines become slower and faster."""


class Pace:
    """Estimates a visit's seconds from what visits took: so much for each, so much for each sample, and how the client
    itself differed from that when it was visited last.

    Every rank enters the same measurements and makes the same estimates. They decide who is trained where and nothing
    else, so no result depends on them.
    """

    def __init__(self) -> None:
        self._sums = np.zeros(5)
        self._own: dict[int, float] = {}

    def enter(self, clients: Sequence[int], sizes: Sequence[int], seconds: Sequence[float]) -> None:
        """Note how long the visits of a round took."""
        x, y = np.array(sizes, dtype=float), np.array(seconds, dtype=float)
        self._sums = FORGETTING * self._sums + [len(x), x.sum(), y.sum(), (x * x).sum(), (x * y).sum()]
        usual = self._usual(sizes)
        self._own |= {c: took / u for c, took, u in zip(clients, seconds, usual, strict=True) if u > 0}

    def estimate(self, clients: Sequence[int], sizes: Sequence[int]) -> list[float]:
        """The seconds that visits of these clients will take; their sizes while nothing is known."""
        if not self._sums[2]:
            return [float(size) for size in sizes]
        return [self._own.get(client, 1.0) * u for client, u in zip(clients, self._usual(sizes), strict=True)]

    def _usual(self, sizes: Sequence[int]) -> list[float]:
        """The line through the measurements: least squares, or through zero where that makes no sense."""
        n, x, y, xx, xy = self._sums.tolist()
        spread = n * xx - x * x
        slope = (n * xy - x * y) / spread if spread > 1e-9 * n * xx else 0.0
        base = (y - slope * x) / n
        if slope <= 0 or base < 0:
            slope, base = (y / x, 0.0) if x else (0.0, y / n)
        return [base + slope * size for size in sizes]
