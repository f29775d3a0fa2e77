"""Mean and deviation of inputs, computed block by block."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pfl_lightning.data.partitions.partition import Floats


class Moments:
    """Mean and deviation of all inputs that were added.

    Images have one mean for each channel, for pixels in [0, 1]. Tables [N, F] have one for each column. Numbers with
    more axes have a single one. Tokens have none.
    """

    def __init__(self) -> None:
        self._count, self._mean, self._squares = 0, np.zeros(1), np.zeros(1)
        self._histogram: NDArray[np.int64] | None = None

    def add(self, x: NDArray[np.generic]) -> None:
        """Count some samples."""
        if x.dtype == np.uint8:
            # exact whatever the size of the blocks
            counts = np.stack([np.bincount(x[..., c].ravel(), minlength=256) for c in range(x.shape[-1])])
            self._histogram = counts if self._histogram is None else self._histogram + counts
        elif x.dtype == np.float32 and len(x):
            self._merge(x.astype(np.float64).reshape(-1, x.shape[1] if x.ndim == 2 else 1))

    def result(self) -> tuple[Floats, Floats]:
        """Mean and deviation. A deviation of 0 becomes 1, so that a constant column can be divided by it."""
        if self._histogram is not None:
            values, weights = np.arange(256) / 255, self._histogram / self._histogram.sum(axis=1, keepdims=True)
            mean = weights @ values
            std = np.sqrt((weights * (values - mean[:, None]) ** 2).sum(axis=1))
        else:
            mean, std = self._mean, np.sqrt(self._squares / max(1, self._count))
        return mean, np.where(std > 0, std, 1.0)

    def _merge(self, rows: Floats) -> None:
        """Add the moments of a block to those so far (Chan, Golub and LeVeque, 1979)."""
        count, mean = len(rows), rows.mean(axis=0)
        total = self._count + count
        gap = mean - self._mean
        squares = ((rows - mean) ** 2).sum(axis=0) + gap**2 * (self._count * count / total)
        self._squares = self._squares + squares
        self._mean = self._mean + gap * (count / total)
        self._count = total
