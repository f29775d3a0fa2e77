"""The cells that a comparison still needs, and its outcomes so far: pure functions of the results."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pfl_lightning.compare.experiment import Column, Experiment, Keys, Method
from pfl_lightning.compare.likeness import Outcome
from pfl_lightning.compare.measurement import check_clients, measure, validation_value
from pfl_lightning.compare.metric import Metric
from pfl_lightning.compare.plan import Cell, Entry, check_columns, check_directions, entry_of, methods_of
from pfl_lightning.compare.resolving import Resolver
from pfl_lightning.compare.run_facts import RunFacts, Unreadable
from pfl_lightning.compare.search import Trial, check_validation, choose, propose
from pfl_lightning.compare.trials import Tried
from pfl_lightning.foundation.errors import RunError

Finished = Mapping[str, tuple[Path, RunFacts]]
"""Identity of a cell → its run directory and the run's records."""


@dataclass
class Stage:
    """The results so far, and the cells needed next."""

    entries: list[Entry] = field(default_factory=list)
    """All places of the table. Those whose search goes on have no cells that count yet."""
    cells: dict[str, Cell] = field(default_factory=dict)
    """Every cell needed at this stage, finished or not, by identity."""
    searching: set[tuple[str, str]] = field(default_factory=set)
    """(method, column) pairs whose search is not over."""
    tried: list[Tried] = field(default_factory=list)
    """The trials of all searches that are over."""
    problems: list[str] = field(default_factory=list)


class Comparison:
    """An experiment with its rows and columns.

    Args:
        experiment: the methods and settings to compare.
        resolver: makes full configs.
        trials: results of published trials. A run of the same trial goes before them.
    """

    def __init__(
        self, experiment: Experiment, resolver: Resolver, trials: Mapping[str, float | None] | None = None
    ) -> None:
        self.experiment, self._resolver, self._published = experiment, resolver, trials or {}
        self.methods = methods_of(experiment, resolver)
        self._entries: dict[str, Entry] = {}
        pairs = [(method, column) for method in self.methods for column in experiment.columns]
        entries = [self._entry(method, column) for method, column in pairs]
        check_columns(entries)
        check_directions(entries)
        for method, column in pairs if experiment.search else []:
            if experiment.search and experiment.search.space_of(method.label):
                check_validation(self._entry(method, column).cells[0].config, method.label)

    def stage(self, finished: Finished, failed: Collection[str] = ()) -> Stage:
        """The cells needed now. A search comes first. Its choice decides which cells the table needs.

        Args:
            finished: results so far.
            failed: identities of cells whose run failed. A failed trial of a search counts as the worst.
        """
        stage = Stage()
        for method in self.methods:
            for column in self.experiment.columns:
                self._add(stage, method, column, finished, failed)
        return stage

    def _add(self, stage: Stage, method: Method, column: Column, finished: Finished, failed: Collection[str]) -> None:
        search = self.experiment.search
        chosen: Keys | None = None
        if search and search.space_of(method.label):
            pending, trials = self._trials(method, column, finished, failed)
            stage.cells |= {cell.id: cell for cell in pending}
            metric = self._entry(method, column).metric
            chosen = None if pending else choose(metric, trials)
            for keys, value in trials:
                cell = self._entry(method, column, keys).cells[0]
                stage.tried.append(Tried(cell, keys, value, keys == chosen))
            if chosen is None:
                stage.entries.append(self._entry(method, column))
                stage.searching.add((method.label, column.label))
                if not pending:
                    stage.problems.append(f"{method.label}: every trial of its search failed")
                return
        entry = self._entry(method, column, chosen)
        stage.entries.append(entry)
        for cell in entry.cells:
            stage.cells.setdefault(cell.id, cell)

    def _trials(
        self, method: Method, column: Column, finished: Finished, failed: Collection[str]
    ) -> tuple[list[Cell], list[Trial]]:
        """Trials that must run now, or all of them with their values."""
        search = self.experiment.search
        assert search
        metric = self._entry(method, column).metric
        trials: list[Trial] = []
        while proposals := propose(search, method.label, column.label, metric.higher, trials):
            pending = []
            for keys in proposals:
                cell = self._entry(method, column, keys).cells[0]
                if cell.id in finished:
                    trials.append((keys, _validated(cell, finished[cell.id][1], metric)))
                elif cell.id in failed:
                    trials.append((keys, None))
                elif cell.id in self._published:
                    trials.append((keys, self._published[cell.id]))
                else:
                    pending.append(cell)
            if pending:
                return pending, []
        return [], trials

    def _entry(self, method: Method, column: Column, chosen: Keys | None = None) -> Entry:
        key = repr((method.label, column.label, chosen))
        if key not in self._entries:
            self._entries[key] = entry_of(self.experiment, self._resolver, method, column, chosen)
        return self._entries[key]


def outcomes_of(stage: Stage, finished: Finished) -> tuple[list[Outcome], list[str]]:
    """Measurements of all finished cells, and the problems of others."""
    outcomes, problems = [], []
    for entry in stage.entries:
        measured = []
        for cell in entry.cells if (entry.method, entry.column) not in stage.searching else ():
            if cell.id not in finished:
                continue
            run_dir, facts = finished[cell.id]
            try:
                measurement = measure(cell, run_dir, facts, entry.metric)
                check_clients(measurement)
                measured.append(measurement)
            except Unreadable as reason:
                problems.append(f"{cell.label}: the results in {run_dir} cannot be used: {reason}")
        outcomes.append(Outcome(entry, tuple(measured)))
    return outcomes, problems


def _validated(cell: Cell, facts: RunFacts, metric: Metric) -> float | None:
    """The value by which validation judges a trial. None if it is not a number."""
    try:
        value = validation_value(facts, metric)
    except Unreadable as reason:
        raise RunError(f"search: {cell.label} cannot be judged: {reason}") from reason
    return None if math.isnan(value) else value
