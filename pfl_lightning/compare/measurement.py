"""The numbers of one cell that its comparison needs, taken from a finished run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from pfl_lightning.compare.gradient_steps import gradient_steps, passes_per_visit, visits
from pfl_lightning.compare.metric import SELECTIONS, Metric
from pfl_lightning.compare.plan import Cell
from pfl_lightning.compare.run_facts import RunFacts, Unreadable, Values
from pfl_lightning.compare.statistics import first_reached, spread, worst_tenth

BYTES = {"up_mib": "up_bytes", "down_mib": "down_bytes"}
"""Metrics made from the traffic of all clients."""
CLIENTS_TOLERANCE = 1e-4
"""clients.csv may have fewer digits than metrics.csv."""


@dataclass(frozen=True)
class Measurement:
    """One cell's results. Values are as the run recorded them, accuracies as fractions."""

    cell: Cell
    run_dir: Path
    metric: Metric
    facts: RunFacts
    value: float
    """The reported value."""
    round: int | None
    """The round it is from. None if each client has its own."""

    @property
    def clients(self) -> Values | None:
        """Each client's own value at the reported moment. None where the run did not record it."""
        by_round = self.facts.clients.get(self.metric.client_column)
        if not by_round or self.metric.select == "mean":
            return None
        if self.round is not None:
            return by_round.get(self.round)
        best = np.fmax if self.metric.higher else np.fmin
        values: Values = best.reduce(list(by_round.values()))
        # with very many clients, clients.csv has the last evaluation only
        return values if _is_mean(self.value, values) else None

    @property
    def worst_tenth(self) -> float:
        """Mean over the worst tenth of the clients at the reported moment. NaN where it is not known."""
        if self.clients is not None:
            return worst_tenth(self.clients, self.metric.higher)
        return self.facts.at(self.round, f"{self.metric.client_column}_worst10") if self.round else math.nan

    @property
    def spread(self) -> float:
        """Standard deviation over the clients at the reported moment."""
        return spread(self.clients) if self.clients is not None else math.nan

    @property
    def bytes_sent(self) -> float:
        """Bytes of all clients in all rounds, up and down."""
        return self._bytes(self.cell.rounds)

    @property
    def steps_per_visit(self) -> float:
        """Gradient steps at a visit, on average."""
        return self._steps(self.cell.rounds) / self.visits

    @property
    def visits(self) -> float:
        """Visits of all clients in all rounds."""
        return visits(self.facts, self.cell.visits)

    @property
    def passes_per_visit(self) -> float:
        """Passes over a client's data at a visit, on average. NaN where they were not recorded."""
        return passes_per_visit(self.facts, self.cell.visits)

    @property
    def is_curve(self) -> bool:
        """Whether the column has several values. A single one does not tell when a value was reached."""
        return len(self.facts.series(self.metric.column)) > 1

    @property
    def best_on_test(self) -> float:
        """The best value that the column ever had on test data. NaN if it has only one."""
        series = self.facts.series(self.metric.column)
        return series[self.metric.best([value for _, value in series])][1] if self.is_curve else math.nan

    @property
    def by_validation(self) -> float:
        """The test value at the round that validation chose. NaN without validation data, or if there is one value."""
        round_ = validation_round(self.facts, self.metric)
        return math.nan if round_ is None or not self.is_curve else self.facts.at(round_, self.metric.column)

    def cost_of(self, target: float) -> tuple[float, float] | None:
        """(bytes, gradient steps) until the reported column first reached a value. None if it never did."""
        round_ = first_reached(self.facts.series(self.metric.column), target, self.metric.higher)
        if round_ is None:
            return None
        return self._bytes(round_), self._steps(round_)

    def _steps(self, round_: int) -> float:
        return gradient_steps(self.facts, round_, self.cell.config["loop"]["batch_size"])

    def _bytes(self, round_: int) -> float:
        return self.facts.total(round_, "up_bytes") + self.facts.total(round_, "down_bytes")


def measure(cell: Cell, run_dir: Path, facts: RunFacts, metric: Metric) -> Measurement:
    """The reported value of a finished run. Raises `Unreadable` where the run did not record it."""
    higher = facts.higher_is_better(metric.column)
    if not metric.certain and higher not in (None, metric.higher):
        said = "higher" if higher else "lower"
        raise Unreadable(f"to it a {said} {metric.name} is better; set report.better to higher or lower")
    if metric.select == "best_per_client":
        entry = "best_per_client_evaluations" if metric.everyone else "best_per_client_visits"
        value = facts.summary.get(entry, {}).get(f"{metric.name}_{metric.moment}")
        if value is None:
            raise Unreadable(f"its summary.json has no {entry} of {metric.name}_{metric.moment}")
        return Measurement(cell, run_dir, metric, facts, float(value), None)
    if metric.column in BYTES:
        facts = _with_mib(facts, cell)
    if metric.select == "mean":
        values = [row[metric.column] for row in facts.rounds if metric.column in row]
        if any(map(math.isnan, values)):  # the mean of the other rounds would flatter
            raise Unreadable(f"its metrics.csv has NaN for {metric.column}")
        if not values:
            raise Unreadable(f"its metrics.csv has no {metric.column}")
        return Measurement(cell, run_dir, metric, facts, fmean(values), None)
    round_ = _round(facts, metric)
    value = math.nan if round_ is None else facts.at(round_, metric.column)
    if math.isnan(value):
        has_row = any(row["round"] == round_ and metric.column in row for row in facts.rounds)
        found = f"has NaN for {metric.column}" if has_row else f"has no {metric.column}"
        raise Unreadable(f"its metrics.csv {found} {SELECTIONS[metric.select]}")
    return Measurement(cell, run_dir, metric, facts, value, round_)


def _with_mib(facts: RunFacts, cell: Cell) -> RunFacts:
    """The facts with the traffic of one client of the round, on average."""
    scale = cell.rounds / cell.visits / 2**20
    added = [{name: row.get(column, math.nan) * scale for name, column in BYTES.items()} for row in facts.rounds]
    return replace(facts, rounds=[{**row, **mib} for row, mib in zip(facts.rounds, added, strict=True)])


def check_clients(measurement: Measurement) -> None:
    """Refuse values per client that are not those of the reported mean. Raises `Unreadable`."""
    clients, metric = measurement.clients, measurement.metric
    if clients is None or metric.average or measurement.round is None:
        return
    if not _is_mean(measurement.value, clients):
        raise Unreadable(f"its clients.csv and its metrics.csv differ in {metric.column}")


def _is_mean(value: float, clients: Values) -> bool:
    """Whether a reported value is the mean of the clients' own values."""
    mean = float(np.nanmean(clients)) if not np.isnan(clients).all() else math.nan
    return abs(mean - value) <= CLIENTS_TOLERANCE * max(1.0, abs(value))


def validation_round(facts: RunFacts, metric: Metric) -> int | None:
    """The round with the best value on validation data. None without validation data."""
    series = facts.series(metric.validation_column)
    return series[metric.best([value for _, value in series])][0] if series else None


def validation_value(facts: RunFacts, metric: Metric) -> float:
    """The value on validation data by which a search chooses: the last one, or the best for other selections."""
    series = facts.series(metric.validation_column)
    if not series:
        raise Unreadable(f"its metrics.csv has no column {metric.validation_column}")
    if metric.select == "last":
        return facts.at(facts.last_round, metric.validation_column)
    return series[metric.best([value for _, value in series])][1]


def _round(facts: RunFacts, metric: Metric) -> int | None:
    if metric.select == "last":  # even where it is NaN: an earlier round would flatter
        return facts.last_round
    if metric.select == "validation":
        return validation_round(facts, metric)
    series = facts.series(metric.column)
    return series[metric.best([value for _, value in series])][0] if series else None
