"""Fixtures that several folders of tests use, and what all tests need only once."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from functools import cache

import pytest
from lightning.fabric.utilities import registry

from pfl_lightning.foundation.signals import SIGNALS, StopSignals

os.fsync = os.fstat  # no test pulls the plug, and a run would wait for the disk 80 times
registry.entry_points = cache(registry.entry_points)  # each new Fabric reads the metadata of all installed packages


def pytest_collection_finish() -> None:
    """Leave the half a million objects of the imports alone: collections take their time again and again otherwise."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # libraries complain at the exit about objects that stay


@pytest.fixture
def stop() -> Iterator[StopSignals]:
    """Signals are noted instead of ending the tests; afterwards they mean what they meant before."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    stop = StopSignals()
    stop.install()
    yield stop
    for number, handler in before.items():
        signal.signal(number, handler)
