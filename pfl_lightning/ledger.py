"""Bytes that travel, counted from what is really encoded: 4 per float; a mask that must be told is 1 bit per entry.

Seeds, sample counts and masks that both sides know are free.
"""

from __future__ import annotations

from dataclasses import dataclass


def dense_bytes(count: int) -> int:
    """Bytes of `count` float32 values whose places both sides know."""
    return 4 * count


def sparse_bytes(count: int, size: int) -> int:
    """Bytes of `count` of `size` float32 values with their places: a bit mask, or 4-byte indices where smaller."""
    return dense_bytes(count) + min((size + 7) // 8, 4 * count)


@dataclass
class Ledger:
    """Bytes sent so far, in both directions."""

    up: int = 0
    down: int = 0

    def add(self, up: int, down: int) -> None:
        """Enter one round."""
        self.up += up
        self.down += down
