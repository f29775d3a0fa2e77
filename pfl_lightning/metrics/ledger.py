"""Bytes on the wire: 4 per float, 1 bit per entry of a mask that must be sent.

Seeds, sample counts and masks that both sides know are free.
"""

from __future__ import annotations


def dense_bytes(count: int) -> int:
    """Bytes of `count` float32 values whose places both sides know."""
    return 4 * count


def sparse_bytes(count: int, size: int) -> int:
    """Bytes of `count` of `size` float32 values with their places: a bit mask, or 4-byte indices where smaller."""
    return dense_bytes(count) + min((size + 7) // 8, 4 * count)
