"""Fixtures that several folders of tests use."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from pfl_lightning.foundation.signals import SIGNALS, StopSignals


@pytest.fixture
def stop() -> Iterator[StopSignals]:
    """Signals are noted instead of ending the tests; afterwards they mean what they meant before."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    stop = StopSignals()
    stop.install()
    yield stop
    for number, handler in before.items():
        signal.signal(number, handler)
