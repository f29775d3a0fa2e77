"""Fixtures that several folders of tests use, and what all tests need only once."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pfl_lightning.foundation.signals import StopSignals

os.fsync = os.fstat  # no test pulls the plug, and a run would wait for the disk 80 times


def pytest_configure(config: pytest.Config) -> None:
    """The process that hands out the tests to the workers runs none, so it imports neither torch nor the package."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        from tests.helpers import shared_work

        shared_work.install()


def pytest_collection_finish() -> None:
    """Leave the half a million objects of the imports alone: collections take their time again and again otherwise."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # libraries complain at the exit about objects that stay


@pytest.fixture
def stop() -> Iterator[StopSignals]:
    """Signals are noted instead of ending the tests; afterwards they mean what they meant before."""
    from pfl_lightning.foundation.signals import SIGNALS, StopSignals

    before = {number: signal.getsignal(number) for number in SIGNALS}
    stop = StopSignals()
    stop.install()
    yield stop
    for number, handler in before.items():
        signal.signal(number, handler)
