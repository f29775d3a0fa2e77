"""An experiment: the methods, columns and seeds of a comparison, and how they are reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Select = Literal["last", "best", "validation", "best_per_client", "mean"]
SELECTS: tuple[Select, ...] = ("last", "best", "validation", "best_per_client", "mean")
Engine = Literal["random", "grid", "optuna"]
ENGINES: tuple[Engine, ...] = ("random", "grid", "optuna")
CONTROLS = ("Local", "FedAvg", "FedAvg+FT", "alone")
"""Added to every comparison. `alone` adds each method with its collaboration switched off, where possible."""
FINE_TUNED = "+FT"
"""Ending of a label: test a fine-tuned copy of each client's model."""
EVERY = "*"

Keys = Mapping[str, Any]
"""Dotted keys to values, as on the command line: `algorithm.quantile: 0.99`."""


@dataclass(frozen=True)
class Report:
    """Which number of a run is reported. None: not said here."""

    metric: str | None = None
    """Column of metrics.csv, such as `all_acc_before`."""
    select: Select | None = None
    """The round it is taken from."""
    better: Literal["higher", "lower"] | None = None
    """Direction of the metric, where the task does not say it."""
    target: float | None = None
    """Value to reach, in the table's unit, for the cost of reaching it."""
    digits: int | None = None
    """Digits after the point of a percentage, or significant digits of other metrics."""

    def over(self, other: Report) -> Report:
        """This report, with the other one's settings where this one is silent."""
        own = {key: value for key, value in vars(self).items() if value is not None}
        return Report(**{**vars(other), **own})


@dataclass(frozen=True)
class Method:
    """One row of the table."""

    label: str
    extends: Path | None = None
    """Config file that this method starts from, on top of the base."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Nested keys, as in a config file."""
    keys: Keys = field(default_factory=dict)
    report: Report = field(default_factory=Report)
    at: Mapping[str, Keys] = field(default_factory=dict)
    """Column label → keys of this method in that column only."""
    root: str = ""
    """Label of the method that this one extends in the end. It names the class where no `algorithm` is given."""
    final: Keys = field(default_factory=dict)
    """Keys that win over all others."""
    control: bool = False


@dataclass(frozen=True)
class Column:
    """One point of the grid."""

    label: str = ""
    base: Path | None = None
    """Config file in place of the experiment's base."""
    keys: Keys = field(default_factory=dict)


@dataclass(frozen=True)
class Search:
    """Values that validation chooses before the comparison."""

    space: Mapping[str, Mapping[str, Any]]
    """Method label, or `*` for all → key → list of values, or `{low, high, log, steps}`."""
    engine: Engine = "random"
    budget: int = 10
    """Trials per method and column."""
    seed: int = 0
    """Of the draws."""

    def space_of(self, label: str) -> dict[str, Any]:
        """The keys searched for a method."""
        return {**self.space.get(EVERY, {}), **self.space.get(label, {})}


@dataclass(frozen=True)
class Experiment:
    """A comparison, as its file describes it."""

    name: str
    methods: tuple[Method, ...]
    base: Path | None = None
    set: Keys = field(default_factory=dict)
    """Keys of every cell. They win over the base and the methods."""
    columns: tuple[Column, ...] = (Column(),)
    seeds: tuple[int, ...] = (0,)
    partition_seed: int | None = 0
    """`data.seed` of every cell, so that all seeds see the same clients. None: the partition follows the run's seed."""
    report: Report = field(default_factory=Report)
    paper: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """(method label, column label) → the paper's number."""
    caption: str = ""
    controls: tuple[str, ...] = CONTROLS
    search: Search | None = None

    @property
    def column_labels(self) -> list[str]:
        """Labels of the columns, in order."""
        return [column.label for column in self.columns]
