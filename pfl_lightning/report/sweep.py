"""The last value against a swept key (FedOBP's Fig. 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from pfl_lightning.report.curves import finish
from pfl_lightning.report.groups import Group, Reported, unique_labels
from pfl_lightning.report.picked import last_value
from pfl_lightning.report.style import color, marker, new_figure

FEWEST = 3
"""Values of a key that make a curve."""
WIDE = 50
"""Ratio of the largest to the smallest value from which the axis is logarithmic."""


@dataclass(frozen=True)
class Sweep:
    """A key with its curves."""

    key: str
    series: dict[str, list[Group]]
    """Groups that differ by nothing but the key, in the order of its values."""
    references: list[Group]
    """Groups of methods that do not have the key, such as controls."""


def find_sweep(groups: Sequence[Group]) -> Sweep | None:
    """The number that most groups differ by, if it has at least three values. None otherwise."""
    keys = dict.fromkeys(key for group in groups for key in group.settings)
    found = [sweep for key in keys if (sweep := _sweep(groups, key)) is not None]
    return max(found, key=lambda sweep: sum(map(len, sweep.series.values())), default=None)


def draw_sweep(sweep: Sweep, shown: Reported) -> Figure:
    """A curve per series, with one standard deviation over seeds, and a level line per reference."""
    figure, axes = new_figure(height=3.2)
    labels = [*sweep.series, *(group.label for group in sweep.references)]
    for index, (label, points) in enumerate(sweep.series.items()):
        x = [float(group.settings[sweep.key]) for group in points]
        last = [np.array([shown.series(run)[1][-1] for run in group.runs]) for group in points]
        spread = [values.std(ddof=1) if len(values) > 1 else 0.0 for values in last]
        middle = [values.mean() for values in last]
        axes.errorbar(x, middle, spread, color=color(index), marker=marker(index), capsize=3, label=label)
    values = [float(group.settings[sweep.key]) for points in sweep.series.values() for group in points]
    if min(values) > 0 and max(values) / min(values) > WIDE:
        axes.set_xscale("log")
    for index, group in enumerate(sweep.references, start=len(sweep.series)):
        axes.axhline(last_value(group, shown), color=color(index), linestyle="--", label=group.label)
    finish(axes, shown, sweep.key, labels)
    return figure


def _sweep(groups: Sequence[Group], key: str) -> Sweep | None:
    with_key = [group for group in groups if type(group.settings.get(key)) in (int, float)]
    series: dict[str, list[Group]] = {}
    for group in with_key:
        others = {name: value for name, value in group.settings.items() if name != key}
        series.setdefault(repr(sorted(others.items(), key=str)), []).append(group)
    curves = [sorted(points, key=lambda group: float(group.settings[key])) for points in series.values()]
    curves = [points for points in curves if len({group.settings[key] for group in points}) >= FEWEST]
    if not curves:
        return None
    settings = [{name: v for name, v in points[0].settings.items() if name != key} for points in curves]
    labels = unique_labels([points[0].first.method for points in curves], settings)
    references = [group for group in groups if key not in group.settings]
    return Sweep(key, dict(zip(labels, curves, strict=True)), references)
