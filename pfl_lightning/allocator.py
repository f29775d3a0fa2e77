"""How a process gets its memory from the system."""

from __future__ import annotations

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # glibc's names for what mallopt sets
LARGE = 1 << 30


def reuse_memory() -> bool:
    """Let this process, and those forked from it, keep the memory that it frees, and use it again.

    By default glibc gives large blocks back to the system at once. On a CPU every batch then asks for the same ones
    again and pays for each page of them, which takes about a quarter of the time of training a small net.

    Returns:
        Whether it could be done: only with glibc, the C library of most Linux systems.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return all([set_option(TRIM_THRESHOLD, LARGE), set_option(MMAP_THRESHOLD, LARGE)])
