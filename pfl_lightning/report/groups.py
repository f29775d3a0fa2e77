"""Runs that differ by their seed only belong together. Others are told apart by name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pfl_lightning.checkpoint.differences import HARMLESS, flatten
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.metrics.record import Metric
from pfl_lightning.report.run_data import Floats, RunData
from pfl_lightning.tasks.logged_sums import direction

IRRELEVANT = ("seed", "fabric.accelerator", "report", *(key for key in HARMLESS if key != "loop.rounds"))
"""Keys that do not change results, and the seed. All keys below them are meant, too."""
MOST_KEYS = 3
"""Differing settings that a label names."""
BEFORE = re.compile(r"(?P<all>all_)?(?P<name>.+)_before")


@dataclass(frozen=True)
class Group:
    """Runs with the same settings and different seeds."""

    label: str
    runs: tuple[RunData, ...]
    settings: dict[str, Any]
    """Flat keys of the config that matter for results."""

    @property
    def first(self) -> RunData:
        """The run with the smallest seed, for figures about a single run."""
        return self.runs[0]


@dataclass(frozen=True)
class Reported:
    """The column that the figures are about."""

    column: str
    metric: Metric
    moment: str
    asked: bool = False
    """Whether the user has asked for this column. Otherwise runs of a comparison show the column of its table."""

    def column_of(self, run: RunData) -> str:
        """The column to show for a run."""
        return self.column if self.asked or not run.reported else run.reported

    def series(self, run: RunData) -> tuple[Floats, Floats]:
        """(rounds, values) of a run."""
        return run.series(self.column_of(run))

    @property
    def axis(self) -> str:
        """The label of an axis, with the unit."""
        return f"{self.metric.label} ({'%' if self.metric.percent else 'units of the target'})"


def group_runs(runs: Sequence[RunData]) -> list[Group]:
    """Sort runs into groups, in the order of their first appearance. A repeated seed starts a group of its own."""
    found: dict[str, list[RunData]] = {}
    for run in runs:
        key = repr((run.label, sorted(relevant(run.config).items(), key=str)))
        while run.seed in [other.seed for other in found.get(key, [])]:
            key += " again"
        found.setdefault(key, []).append(run)
    settings = [relevant(members[0].config) for members in found.values()]
    labels = unique_labels([members[0].label or members[0].method for members in found.values()], settings)
    parts = zip(labels, found.values(), settings, strict=True)
    return [Group(label, tuple(sorted(members, key=lambda run: run.seed)), own) for label, members, own in parts]


def relevant(config: dict[str, Any]) -> dict[str, Any]:
    """The settings that matter for results, as flat keys."""
    flat = flatten(config)
    return {key: flat[key] for key in flat if not any(key == i or key.startswith(f"{i}.") for i in IRRELEVANT)}


def differing_keys(groups: Sequence[Group], besides: str = "algorithm") -> list[str]:
    """Keys outside of one part of the config whose values differ between groups."""
    keys = sorted({key for group in groups for key in group.settings})
    return [
        key
        for key in keys
        if key.partition(".")[0] != besides and len({repr(group.settings.get(key)) for group in groups}) > 1
    ]


def reported(runs: Sequence[RunData], column: str | None = None) -> Reported:
    """The column to report: as asked, else that of all clients before local training, for the task's first metric."""
    columns, asked = list(runs[0].metrics), column is not None
    if column is None and runs[0].reported:
        column = Counter(run.reported for run in runs).most_common(1)[0][0]
    elif column is None:
        known = [name for name in columns if len(runs[0].series(name)[0])]
        before = [match for name in known if (match := BEFORE.fullmatch(name))]
        column = next((match[0] for match in before if match["all"]), before[0][0] if before else None)
    wanted = [column if asked else run.reported or column for run in runs]
    missing = [run.path for run, its in zip(runs, wanted, strict=True) if its is None or not len(run.series(its)[0])]
    if missing:
        lacking = f"column {column}" if column else "evaluation"
        raise ConfigError(f"metric: {missing[0]} has no {lacking}; use one of {', '.join(columns[1:])}")
    assert column is not None
    bare = re.sub(r"_(pooled|worst10|validation)$", "", column.removeprefix("all_").removeprefix("held_out_"))
    name, _, moment = bare.removeprefix("global_").rpartition("_")
    if bare.startswith("global_") or not name:
        name, moment = bare.removeprefix("global_"), "global" if bare.startswith("global_") else ""
    better = "higher" if _is_higher_better(runs, column, name) else "lower"
    return Reported(column, Metric.named(name, better), moment, asked)


def _is_higher_better(runs: Sequence[RunData], column: str, name: str) -> bool:
    """A summary has the best value, which is the largest or the smallest of the column. Without one, names tell."""
    for run in runs:
        best, values = run.summary.get("best", {}).get(column), run.series(column)[1]
        values = values[~np.isnan(values)]
        if best is not None and len(values) and values.min() != values.max():
            return bool(best == values.max())
    return direction(name, None) == "higher"


def unique_labels(methods: Sequence[str], settings: Sequence[dict[str, Any]]) -> list[str]:
    """Each group's method, with the settings by which it differs from groups of the same method. No label is double."""
    labels: list[str] = []
    for method, own in zip(methods, settings, strict=True):
        same = [other for name, other in zip(methods, settings, strict=True) if name == method]
        keys = sorted({key for other in same for key in other})
        keys = [key for key in keys if len({repr(other.get(key)) for other in same}) > 1]
        words = [f"{key.rpartition('.')[2]} {own.get(key)}" for key in keys]
        text = ", ".join([*words[:MOST_KEYS], *(["…"] if len(words) > MOST_KEYS else [])])
        label = f"{method} ({text})" if text else method
        labels.append(label if label not in labels else f"{label} #{len(labels) + 1}")
    return labels
