"""Sums → metrics: client mean, pooled, worst tenth, and the last, best and best-per-client values.

A table of sums has one row per client and one column per name in `task.sums`. An untested client does not
count. A tested client always counts: if one of its sums is not finite, all its metrics are NaN, and so are
the means they enter. Its other sums say nothing, because the class of NaN logits is 0.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pfl_lightning.metrics.keys import MetricKey, Moment, Scope
from pfl_lightning.tasks.task import Task

Table = np.ndarray
Values = dict[str, np.ndarray]
"""Metric to one value per client. NaN for clients that were not tested."""


def per_client(task: Task, table: Table) -> Values:
    """Each metric of each client (row)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return task.metrics(dict(zip(task.sums, table.T, strict=True)))


def summarize(
    task: Task, table: Table, tested: np.ndarray, moment: Moment, scope: Scope = "participants"
) -> tuple[Values, dict[MetricKey, float]]:
    """The metrics of one moment: per client, and as client mean, pooled over all samples, and mean of the worst tenth.

    Args:
        task: names the metrics and says which are better when higher.
        table: the sums, a row per client.
        tested: bool, a value per row. Without a tested client there are no columns.
        moment: the tested model.
        scope: the tested clients. The worst tenth of them is rounded up.
    """
    rows = table[tested]
    rows = np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, np.nan)
    together = per_client(task, np.vstack([rows, rows.sum(axis=0, keepdims=True)]))
    values = {name: np.full(len(table), np.nan) for name in together}
    columns = {}
    for name, column in together.items():
        of_clients, pooled = column[:-1], column[-1]
        values[name][tested] = of_clients
        if len(of_clients):
            worst_first = np.sort(of_clients)[:: 1 if task.better[name] == "higher" else -1]
            worst = worst_first[: math.ceil(len(worst_first) / 10)]
            diverged = bool(np.isnan(of_clients).any())  # NaN is the worst value, but sorts last
            columns[MetricKey(name, moment, scope)] = float(worst_first.mean())
            if name not in task.unpooled:
                columns[MetricKey(name, moment, scope, "pooled")] = float(pooled)
            columns[MetricKey(name, moment, scope, "worst10")] = math.nan if diverged else float(worst.mean())
    return values, columns


@dataclass
class Best:
    """The last and the best value of every metric, and the best values of each client."""

    better: Mapping[str, str]
    """Metric to `higher` or `lower`."""
    num_clients: int
    last: dict[MetricKey, float] = field(default_factory=dict)
    best: dict[MetricKey, float] = field(default_factory=dict)
    clients: dict[tuple[Scope, str, Moment], np.ndarray] = field(default_factory=dict)
    """The best value of each client so far [num_clients], over its participations or over evaluations of all clients.
    The two are kept apart, because evaluations depend on `loop.eval_every`. NaN: never tested. Infinity, on the bad
    side: tested, but never finite."""

    def enter_columns(self, columns: Mapping[MetricKey, float]) -> None:
        """Enter the metrics of a round. NaN becomes the last value, but never the best."""
        for key, value in columns.items():
            self.last[key] = value
            if not math.isnan(value):
                better = max if self.better[key.metric] == "higher" else min
                self.best[key] = better(value, self.best.get(key, value))

    def enter_clients(
        self,
        scope: Scope,
        moment: Moment,
        values: Values,
        clients: Sequence[int] | None = None,
        tested: np.ndarray | None = None,
    ) -> None:
        """Enter the values that clients reached.

        Args:
            scope: at a participation, or in an evaluation of all clients.
            moment: such as `before`.
            values: per metric a value for each client (NaN: not tested now, or not finite).
            clients: the clients of the values. Default: all.
            tested: bool, a value per client. Default: those with a value.
        """
        rows = slice(None) if clients is None else np.array(clients)
        for name, of_clients in values.items():
            kept = self.clients.setdefault((scope, name, moment), np.full(self.num_clients, np.nan))
            better, worst = (np.fmax, -np.inf) if self.better[name] == "higher" else (np.fmin, np.inf)
            if tested is not None:
                of_clients = np.where(tested & np.isnan(of_clients), worst, of_clients)
            kept[rows] = better(of_clients, kept[rows])

    def summary(self) -> dict[str, dict[str, float]]:
        """For summary.json: `last`, `best`, and the mean over clients of the best value of each.

        `best_per_client_visits` counts participations only, `best_per_client_evaluations` evaluations only.
        """
        means: dict[Scope, dict[str, float]] = {"participants": {}, "all": {}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a moment at which nobody was tested
            for (scope, name, moment), values in self.clients.items():
                mean = float(np.nanmean(values))
                means[scope][f"{name}_{moment}"] = mean if math.isfinite(mean) else math.nan
        return {
            "last": by_column(self.last),
            "best": by_column(self.best),
            "best_per_client_visits": means["participants"],
            "best_per_client_evaluations": means["all"],
        }


def by_column(values: Mapping[MetricKey, float]) -> dict[str, float]:
    """The same values under the names of their columns."""
    return {key.column: value for key, value in values.items()}
