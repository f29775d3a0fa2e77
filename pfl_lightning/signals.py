"""Being asked to stop: Ctrl-C, SIGTERM and SIGUSR1 are noted, and the run ends at a good moment."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
BOUNCE_SECONDS = 1.0
"""`timeout` and terminals deliver one wish to stop several times: only a later Ctrl-C is a second one."""


class StopSignals:
    """What this process was asked for. Made before torch is imported: that takes seconds, and SIGUSR1 would kill.

    The handler only notes the request and hands it on to forked ranks. Before `armed` is set (while nothing is there
    that could be lost) Ctrl-C is an ordinary `KeyboardInterrupt`; afterwards a second Ctrl-C is one.
    """

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.armed = False
        self._first_interrupt = 0.0
        self._process = os.getpid()

    @property
    def requested(self) -> bool:
        """Whether the run is to stop."""
        return bool(self.seen)

    def install(self) -> None:
        """Take over the signals; forked ranks inherit it."""
        for number in SIGNALS:
            signal.signal(number, self._on_signal)

    def wait(self, seconds: float, more_than: int = 0) -> bool:
        """Wait until more than so many signals have come, so many seconds at most; whether they have."""
        end = time.monotonic() + seconds
        while len(self.seen) <= more_than and time.monotonic() < end:
            time.sleep(0.05)
        return len(self.seen) > more_than

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a forked rank: the process it came from decides what a second one means
            self.seen.append(number)
            return
        if number == signal.SIGINT:
            now = time.monotonic()
            again = signal.SIGINT in self.seen and now - self._first_interrupt > BOUNCE_SECONDS
            if not self.armed or again:
                raise KeyboardInterrupt
            if signal.SIGINT not in self.seen:
                self._first_interrupt = now
        self.seen.append(number)
        for child in multiprocessing.active_children():
            if child.pid:
                os.kill(child.pid, number)
