"""The memory of this process."""

from __future__ import annotations

import resource
import sys


def peak_memory() -> int:
    """The largest resident memory of this process so far, in bytes. Pages shared by forked ranks count for each."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
