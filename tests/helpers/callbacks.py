"""Callbacks for tests."""

from __future__ import annotations

from collections.abc import Callable

from pfl_lightning.callback import Callback
from pfl_lightning.metrics.record import RoundRecord


class AfterRound(Callback):
    """Calls a function with the record of each round."""

    def __init__(self, call: Callable[[RoundRecord], object]) -> None:
        self.call = call

    def on_round_end(self, record: RoundRecord) -> None:
        self.call(record)
