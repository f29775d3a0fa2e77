"""The record of one round, and how a metric is named and written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_lightning.metrics.keys import Scope, all_keys


@dataclass
class RoundRecord:
    """The results of one round.

    Args:
        round: Number of the round, from 1.
        scalars: Column of metrics.csv -> value. Every client's values at evaluation rounds start with `all_`.
        per_client: Column -> one value per participant, or per client for `all_` columns (NaN: not tested).
        layer_share: Parameter tensor -> share of personal entries, mean over the participants.
        phases: Phase of the round -> seconds it took.
        cohort: The participants.
    """

    round: int
    scalars: dict[str, float]
    per_client: dict[str, NDArray[Any]] = field(default_factory=dict)
    layer_share: dict[str, float] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    cohort: list[int] = field(default_factory=list)

    @property
    def is_evaluation(self) -> bool:
        """Whether every client was tested, not only the participants."""
        return any(column.startswith("all_") for column in self.scalars)


@dataclass(frozen=True)
class Metric:
    """A metric of the task: its name in columns ("acc"), its name for people, and how its values are written."""

    name: str = "acc"
    label: str = "accuracy"
    percent: bool = True
    higher_is_better: bool = True

    @classmethod
    def named(cls, name: str, better: str) -> Metric:
        """`acc` is a share, written in percent. Any other metric (`rmse`) is a plain number."""
        is_accuracy = name == "acc"
        return cls(name, "accuracy" if is_accuracy else name, is_accuracy, better == "higher")

    def text(self, value: float, digits: int = 1) -> str:
        """A value as people read it. `digits` are those after the point of a percentage."""
        return f"{100 * value:.{digits}f} %" if self.percent else f"{value:#.4g}".rstrip(".")

    def split(self, column: str) -> tuple[Scope, str] | None:
        """`all_acc_before` -> ("all", "before"), `all_global_acc` -> ("all", "global"). None for other columns."""
        key = all_keys([self.name]).get(column)
        if key is None:
            return None
        return key.scope, key.moment + ("" if key.average == "mean" else f"_{key.average}")

    def best(self, values: list[float]) -> tuple[float, int] | None:
        """The best value and the index where it was first reached. None when there is no value."""
        known = [(value, index) for index, value in enumerate(values) if not np.isnan(value)]
        sign = -1.0 if self.higher_is_better else 1.0
        return min(known, key=lambda pair: sign * pair[0], default=None)
