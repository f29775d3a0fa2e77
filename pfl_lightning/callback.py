"""Callbacks: code that follows a run, and may end it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from typing_extensions import override

from pfl_lightning.foundation.errors import ConfigError, require
from pfl_lightning.metrics.record import RoundRecord

if TYPE_CHECKING:
    from pfl_lightning.engine.engine import VisitResult


class Callback:
    """Override the events of interest.

    Every rank calls the same events in the same order, except `on_visit_end`, which the rank that trained the client
    calls. Records are the same on every rank. An abandoned round ends without `on_round_end`.
    """

    should_stop = False
    """Set it to True to end the run after the present round. It must be the same on every rank."""

    def check(self, columns: Sequence[str]) -> None:
        """Refuse a run that lacks columns which the callback needs. Called before anything is written."""

    def on_fit_start(self, round_: int) -> None:
        """The run begins, or goes on after round `round_`."""

    def on_round_start(self, round_: int) -> None:
        """A round begins."""

    def on_visit_end(self, result: VisitResult) -> None:
        """A client of this rank has been trained."""

    def on_evaluation_end(self, record: RoundRecord) -> None:
        """A round with an evaluation of all clients is complete. `on_round_end` follows."""

    def on_round_end(self, record: RoundRecord) -> None:
        """A round is complete."""

    def on_fit_end(self, summary: dict[str, Any]) -> None:
        """The last round is complete."""

    def state_dict(self) -> dict[str, Tensor]:
        """The tensors that a checkpoint saves. Called on every rank; those of rank 0 are saved."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from a checkpoint. Called on every rank with the same tensors."""


class EarlyStopping(Callback):
    """Ends the run when a metric has not improved for some time.

    Args:
        metric: a column of metrics.csv, such as `all_acc_before` or `all_acc_validation`.
        patience: the number of values without improvement that ends the run.
        min_delta: the smallest change that counts as an improvement.
        better: whether higher or lower values are better.
    """

    def __init__(
        self,
        metric: str = "all_acc_before",
        patience: int = 5,
        min_delta: float = 0.0,
        better: Literal["higher", "lower"] = "higher",
    ) -> None:
        require(patience >= 1, "patience", patience, "a whole number >= 1")
        require(min_delta >= 0, "min_delta", min_delta, "a number >= 0")
        self.metric, self.patience, self.min_delta = metric, patience, min_delta
        self.sign = 1.0 if better == "higher" else -1.0
        self.best, self.stale = -math.inf, 0

    @override
    def check(self, columns: Sequence[str]) -> None:
        known = [name for name in columns if name.startswith("all_")]
        require(self.metric in columns, "callbacks.metric", self.metric, f"a column of metrics.csv: {', '.join(known)}")

    @override
    def on_round_end(self, record: RoundRecord) -> None:
        value = record.scalars.get(self.metric)
        if value is None:
            if record.is_evaluation:
                raise ConfigError(f"callbacks: EarlyStopping found no column {self.metric} in an evaluation round")
            return
        improved = self.sign * value > self.best + self.min_delta
        self.best, self.stale = (self.sign * value, 0) if improved else (self.best, self.stale + 1)
        self.should_stop = self.stale >= self.patience

    @override
    def state_dict(self) -> dict[str, Tensor]:
        return {"progress": torch.tensor([self.best, float(self.stale)], dtype=torch.float64)}

    @override
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.best, stale = state["progress"].tolist()
        self.stale = int(stale)
        self.should_stop = self.stale >= self.patience
