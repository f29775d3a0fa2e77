"""Sums → metrics: client mean, pooled, worst decile; last, best, best-per-client. No mean of means by accident.

A table of sums has one row per client and one column per name in `task.sums`. Rows of clients that were not tested are
NaN and do not count.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pfl_lightning.tasks.task import Task

Table = np.ndarray


def per_client(task: Task, table: Table) -> dict[str, np.ndarray]:
    """Each metric for each client (row)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return task.metrics(dict(zip(task.sums, table.T, strict=True)))


def summarize(task: Task, table: Table, suffix: str) -> dict[str, float]:
    """Columns of one moment, e.g. suffix `before`: `acc_before`, `acc_before_pooled`, `acc_before_worst10`.

    The plain name is the mean over clients; `pooled` is over all their samples together; `worst10` is the mean over
    the worst tenth of the clients, rounded up.
    """
    pooled = per_client(task, np.nansum(table, axis=0, keepdims=True))
    columns = {}
    for name, values in per_client(task, table).items():
        values = np.sort(values[~np.isnan(values)])
        if task.better[name] == "lower":
            values = values[::-1]
        worst = values[: math.ceil(len(values) / 10)]
        columns[f"{name}_{suffix}"] = float(values.mean()) if len(values) else math.nan
        columns[f"{name}_{suffix}_pooled"] = float(pooled[name][0])
        columns[f"{name}_{suffix}_worst10"] = float(worst.mean()) if len(worst) else math.nan
    return columns


@dataclass
class Best:
    """Last and best value of every column, and the best of each client at each moment."""

    task: Task
    last: dict[str, float] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)
    clients: dict[str, np.ndarray] = field(default_factory=dict)
    """Per moment and metric, e.g. `acc_before`: each client's own best so far [num_clients]."""

    def enter_columns(self, columns: Mapping[str, float]) -> None:
        """Enter a round's columns; those that are not metrics are passed over."""
        for name, value in columns.items():
            direction = self._direction(name)
            if direction is None or math.isnan(value):
                continue
            self.last[name] = value
            better = max if direction == "higher" else min
            self.best[name] = better(value, self.best.get(name, value))

    def enter_clients(self, moment: str, table: Table, num_clients: int, clients: Sequence[int] | None = None) -> None:
        """Enter what clients reached at a moment.

        Args:
            moment: such as `before`.
            table: a row per client (NaN: not tested now).
            num_clients: of the federation.
            clients: whose rows they are; by default those of all clients.
        """
        rows = slice(None) if clients is None else np.array(clients)
        for name, values in per_client(self.task, table).items():
            key = f"{name}_{moment}"
            if key not in self.clients:
                self.clients[key] = np.full(num_clients, np.nan)
            kept = self.clients[key]
            better = np.fmax if self.task.better[name] == "higher" else np.fmin
            kept[rows] = better(values, kept[rows])

    def summary(self) -> dict[str, dict[str, float]]:
        """For summary.json: `last`, `best`, and `best_per_client` (mean over clients of each one's own best)."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a moment at which nobody was tested
            per_client_best = {key: float(np.nanmean(values)) for key, values in self.clients.items()}
        return {"last": self.last, "best": self.best, "best_per_client": per_client_best}

    def _direction(self, column: str) -> str | None:
        parts = column.split("_")
        return next((self.task.better[p] for p in parts[:3] if p in self.task.better and parts[0] != "train"), None)
