"""Curves of one or many runs: over rounds and over bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pfl_lightning.metrics.keys import MetricKey, Moment
from pfl_lightning.report.groups import Group, Reported
from pfl_lightning.report.picked import GREY, in_colour, line_label
from pfl_lightning.report.run_data import RunData
from pfl_lightning.report.style import (
    as_percent,
    color,
    dashes,
    legend_below,
    marker,
    new_figure,
    unit_of_bytes,
    whole_rounds,
)

Floats = NDArray[np.float64]
MOMENTS: dict[Moment, str] = {
    "before": "personal, before local training",
    "after": "personal, after local training",
    "finetuned": "personal, fine-tuned copy",
    "global": "plain global model",
}
FEW_POINTS = 25


def draw_convergence(groups: Sequence[Group], shown: Reported) -> Figure:
    """The reported column over rounds: a line per group, and a band of one standard deviation over its seeds."""
    figure, axes = new_figure(height=3.2)
    labels = []
    for group, index in in_colour(groups, shown):
        rounds, values = _common([shown.series(run) for run in group.runs])
        labels += _line(axes, index, rounds, values, line_label(group, shown))
    finish(axes, shown, "round", labels)
    whole_rounds(axes)
    return figure


def draw_moments(run: RunData, shown: Reported) -> Figure | None:
    """All tested models of one run over rounds. None if there is only one."""
    lines: list[tuple[str, tuple[Floats, Floats]]] = []
    for moment, label in MOMENTS.items():
        rounds, values = run.series(MetricKey(shown.metric.name, moment, "all").column)
        if len(rounds):
            lines.append((label, (rounds, values)))
    if len(lines) < 2:
        return None
    figure, axes = new_figure(height=3.4)
    labels = []
    for index, (label, (rounds, values)) in enumerate(lines):
        same = [name for name, series in lines if _lies_on(series, (rounds, values))]
        if label == same[0]:  # a later line would hide an earlier one
            labels += _line(axes, index, rounds, values[None], "; ".join(same))
    finish(axes, shown, "round", labels, least=1)
    whole_rounds(axes)
    return figure


def _lies_on(one: tuple[Floats, Floats], other: tuple[Floats, Floats]) -> bool:
    """Whether nobody could tell two lines apart."""
    return np.array_equal(one[0], other[0]) and np.allclose(one[1], other[1], rtol=1e-3, atol=0.0, equal_nan=True)


def draw_traffic(groups: Sequence[Group], shown: Reported) -> Figure | None:
    """The reported column over the bytes that all clients have sent and received. None if nothing was sent."""
    largest = max(run.total_bytes()[-1] for group in groups for run in group.runs)
    if not largest:
        return None
    size, unit = unit_of_bytes(largest)
    figure, axes = new_figure(height=3.2)
    labels = []
    for group, index in in_colour(groups, shown):
        rounds, values = _common([shown.series(run) for run in group.runs])
        sent = np.mean([np.interp(rounds, run.metrics["round"], run.total_bytes()) for run in group.runs], axis=0)
        labels += _line(axes, index, sent / size, values, line_label(group, shown))
    finish(axes, shown, f"sent by and to all clients ({unit})", labels)
    return figure


def _common(series: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """The rounds that all seeds have, and their values. # [rounds], [seeds, rounds]"""
    rounds = series[0][0]
    for other, _ in series[1:]:
        rounds = np.intersect1d(rounds, other)
    return rounds, np.stack([values[np.isin(own, rounds)] for own, values in series])


def _line(axes: Axes, index: int | None, x: Floats, values: Floats, label: str) -> list[str]:
    """The mean of some seeds, and a band of one standard deviation. Grey without an index. Returns labels to show."""
    if index is None:
        axes.plot(x, values.mean(axis=0), **GREY)
        return []
    style = {"color": color(index), "linestyle": dashes(index)}
    marks = marker(index) if len(x) <= FEW_POINTS else ""
    axes.plot(x, values.mean(axis=0), label=label, marker=marks, **style)  # type: ignore[arg-type]
    if len(values) > 1:
        middle, deviation = values.mean(axis=0), values.std(axis=0, ddof=1)
        low, high = middle - deviation, middle + deviation
        axes.fill_between(x, low, high, color=color(index), alpha=0.18, linewidth=0)
    return [label]


def finish(axes: Axes, shown: Reported, x_label: str, labels: Sequence[str], least: int = 2) -> None:
    """Labels with units, and the legend if there are at least `least` labels."""
    axes.set_xlabel(x_label)
    axes.set_ylabel(shown.axis)
    if shown.metric.percent:
        as_percent(axes)
    legend_below(axes, labels, least)
