"""Where the time of a round goes, and the memory of a run."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Seconds per phase. Phases may nest; time counts for the innermost one only, so the phases add up."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._mark = time.perf_counter()

    def restart(self) -> None:
        """Begin anew; what was counted so far stays with whoever has it."""
        self.seconds = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside the block for `name`."""
        self._lap()
        self._open.append(name)
        try:
            yield
        finally:
            self._lap()
            self._open.pop()

    def _lap(self) -> None:
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] = self.seconds.get(self._open[-1], 0.0) + now - self._mark
        self._mark = now


def peak_memory() -> int:
    """The most memory that this process has ever had, in bytes: resident, what forked ranks share included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
