"""Settings of the C library's memory allocator."""

from __future__ import annotations

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # options of glibc's mallopt
ONE_GIB = 1 << 30
LARGEST_BLOCKS = (ONE_GIB, 1 << 25)
"""Sizes up to which blocks are kept, the best first. glibc before 2.35 refuses more than 32 MiB."""


def reuse_memory() -> bool:
    """Let this process and its forks keep freed memory and use it again.

    By default glibc returns large blocks to the system immediately. On a CPU every batch then requests the same blocks
    again and pays a page fault for each of their pages. That takes about a quarter of the time of training a small net.

    Returns:
        True if it was done. It needs glibc, the C library of most Linux systems.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    # Setting any threshold stops glibc from adapting the other, so trimming is left alone unless blocks are kept.
    if not any(set_option(MMAP_THRESHOLD, size) for size in LARGEST_BLOCKS):
        return False
    return bool(set_option(TRIM_THRESHOLD, ONE_GIB))
