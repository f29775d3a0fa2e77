"""Requests to stop: Ctrl-C, SIGTERM and SIGUSR1 are noted, and the run ends between two batches."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
BOUNCE_SECONDS = 1.0
"""`timeout` and terminals may deliver one Ctrl-C several times. Only one that comes later than this is a second one."""


class StopSignals:
    """The signals that this process has received.

    Create it before importing torch: the import takes seconds, during which SIGUSR1 would kill the process. The handler
    only notes the signal and passes it on to forked ranks. Until `armed` is set there is nothing to lose, and Ctrl-C
    raises `KeyboardInterrupt`. Afterwards only a second Ctrl-C does.
    """

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.armed = False
        self._first_interrupt = 0.0
        self._process = os.getpid()

    @property
    def requested(self) -> bool:
        """Whether the run should stop."""
        return bool(self.seen)

    def install(self) -> None:
        """Set the signal handlers. Forked ranks inherit them."""
        for number in SIGNALS:
            signal.signal(number, self._on_signal)

    @contextmanager
    def noting_interrupts(self) -> Iterator[None]:
        """Inside the block, note Ctrl-C only. A second one raises `KeyboardInterrupt`. Other threads never get it."""
        self.armed = True
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def wait(self, seconds: float, more_than: int = 0) -> bool:
        """Wait for at most `seconds` until more than `more_than` signals have come. Returns whether they have."""
        end = time.monotonic() + seconds
        while len(self.seen) <= more_than and time.monotonic() < end:
            time.sleep(0.05)
        return len(self.seen) > more_than

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a forked rank: its parent decides about a second Ctrl-C
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
