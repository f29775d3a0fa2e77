"""The cells of a comparison: every run that its table needs, identified by the resolved config."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pfl_lightning.compare.controls import alone, named_controls
from pfl_lightning.compare.experiment import FINE_TUNED, Column, Experiment, Keys, Method, Report
from pfl_lightning.compare.identity import identity
from pfl_lightning.compare.layers import class_name
from pfl_lightning.compare.metric import Metric, metric_from
from pfl_lightning.compare.resolving import Resolver, resolved
from pfl_lightning.foundation.errors import ConfigError


@dataclass(frozen=True)
class Cell:
    """One run."""

    id: str
    """SHA-256 of the resolved config."""
    method: str
    column: str
    seed: int
    config: Mapping[str, Any]
    """Resolved, with all keys."""
    searched: str = ""
    """Values that a search tries or has chosen, for people: trials of one method differ by nothing else."""

    @property
    def label(self) -> str:
        """How people tell it from the others."""
        return ", ".join(word for word in (self.method, self.column, self.searched, f"seed {self.seed}") if word)

    @property
    def rounds(self) -> int:
        """Rounds of the run."""
        return int(self.config["loop"]["rounds"])

    @property
    def visits(self) -> int:
        """Visits of the run, or its rounds where the number of clients is not in the config."""
        clients = self.config.get("data", {}).get("init_args", {}).get("num_clients") or 1
        return self.rounds * max(1, round(float(self.config["loop"]["participation"]) * int(clients)))

    @property
    def cost(self) -> int:
        """Epochs of local training over all visits: a measure of its duration known in advance."""
        return self.visits * max(1, int(self.config["loop"]["local_epochs"]))


@dataclass(frozen=True)
class Entry:
    """One place in the table: a method in a column, with one cell per seed."""

    method: str
    column: str
    metric: Metric
    cells: tuple[Cell, ...]
    control: bool = False
    chosen: Keys | None = None
    """Values that the search chose."""


def methods_of(experiment: Experiment, resolver: Resolver) -> list[Method]:
    """The rows of the table: methods, then controls."""
    rows = list(experiment.methods)
    for method in experiment.methods:
        config = resolved(resolver, experiment, method, experiment.columns[0], {})
        if off := alone(method, class_name(config, "algorithm") or "", experiment):
            rows.append(off)
    return [*rows, *named_controls(experiment)]


def entry_of(
    experiment: Experiment,
    resolver: Resolver,
    method: Method,
    column: Column,
    chosen: Keys | None = None,
    seeds: Sequence[int] | None = None,
) -> Entry:
    """A method in a column, with the values that a search chose."""
    config = resolved(resolver, experiment, method, column, chosen or {})
    report = method.report.over(experiment.report)
    if method.label.endswith(FINE_TUNED) and method.report.metric is None:
        report = _fine_tuned(report)
    directions, complete = resolver.directions(config)
    metric = metric_from(report, directions, method.label.endswith(FINE_TUNED), complete)
    _check_measured(metric, config, method.label)
    cells = []
    for seed in experiment.seeds if seeds is None else seeds:
        with_seed = {**config, "seed": seed}
        cells.append(Cell(identity(with_seed), method.label, column.label, seed, with_seed, _values(chosen or {})))
    return Entry(method.label, column.label, metric, tuple(cells), method.control, chosen)


def check_columns(entries: Sequence[Entry]) -> None:
    """Refuse a grid without effect on a method: two columns would show the same runs.

    Controls may have the same runs in several columns, for they do without the grid's `algorithm.…` keys.
    """
    seen: dict[tuple[str, str], str] = {}
    for entry in entries:
        if entry.control:
            continue
        for cell in entry.cells:
            other = seen.setdefault((entry.method, cell.id), entry.column)
            if other != entry.column:
                raise ConfigError(
                    f"grid: {entry.method} has the same config at {other!r} and at {entry.column!r}; "
                    "its own settings override the grid's"
                )


def check_directions(entries: Sequence[Entry]) -> None:
    """Refuse rows that disagree about a column: the same values cannot be better in one row and worse in another."""
    seen: dict[str, Entry] = {}
    for entry in entries:
        metric, other = entry.metric, seen.setdefault(entry.metric.column, entry)
        if metric.higher != other.metric.higher:
            raise ConfigError(
                f"methods.{entry.method}.report.better: a {'higher' if metric.higher else 'lower'} {metric.column} is "
                f"better here, and worse for {other.method}; set it once, in report"
            )


def _values(keys: Keys) -> str:
    """`quantile=0.9, lr=0.0123`."""
    shown = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in keys.items()}
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in shown.items())


def _fine_tuned(report: Report) -> Report:
    """The experiment's metric, at the moment that the label asks for."""
    if report.metric is None:
        return report
    return replace(report, metric=re.sub(r"_(before|after)(?=$|_)", "_finetuned", report.metric))


def _check_measured(metric: Metric, config: Mapping[str, Any], label: str) -> None:
    """Refuse a metric that the runs would not record."""
    loop = config["loop"]
    if metric.everyone and not loop["eval_every"]:
        raise ConfigError(f"methods.{label}: {metric.column} is recorded at evaluations; set loop.eval_every above 0")
    if metric.held_out and not config.get("data", {}).get("init_args", {}).get("held_out_clients"):
        raise ConfigError(f"methods.{label}: {metric.column} needs data.held_out_clients above 0")
    if metric.moment == "finetuned" and not loop["finetune_epochs"]:
        raise ConfigError(f"methods.{label}: {metric.column} needs loop.finetune_epochs above 0")
