"""The meaning of signals before and after there is something to lose."""

from __future__ import annotations

import os
import signal

import pytest

from pfl_lightning.foundation import signals


def test_before_training_ctrl_c_interrupts_and_other_signals_are_noted(stop):
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert not stop.requested
    signal.raise_signal(signal.SIGUSR1)
    assert stop.seen == [signal.SIGUSR1], "without the handler it would have killed the process"


def test_a_second_ctrl_c_interrupts_but_a_repeated_one_does_not(stop, monkeypatch):
    stop.armed = True
    now = [100.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    signal.raise_signal(signal.SIGINT)
    now[0] += 0.5
    signal.raise_signal(signal.SIGINT)
    assert stop.requested
    now[0] += 0.6
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_any_number_of_terms_are_one_request(stop):
    stop.armed = True
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM):
        os.kill(os.getpid(), number)
    assert stop.wait(0, more_than=2)
    assert not stop.wait(0, more_than=3)
