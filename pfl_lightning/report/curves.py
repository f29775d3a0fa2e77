"""Curves of one or many runs: over rounds, over bytes, and against a key that was swept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pfl_lightning.metrics.keys import MetricKey, Moment
from pfl_lightning.report.groups import Group, Reported
from pfl_lightning.report.run_data import RunData
from pfl_lightning.report.style import as_bytes, as_percent, color, dashes, legend_below, marker, new_figure

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
    for index, group in enumerate(groups):
        rounds, values = _common([run.series(shown.column) for run in group.runs])
        _line(axes, index, rounds, values, group.label)
    _finish(axes, shown, "round", [group.label for group in groups])
    return figure


def draw_moments(run: RunData, shown: Reported) -> Figure | None:
    """All tested models of one run over rounds; None if there is only one."""
    lines: list[tuple[str, tuple[Floats, Floats]]] = []
    for moment, label in MOMENTS.items():
        rounds, values = run.series(MetricKey(shown.metric.name, moment, "all").column)
        if len(rounds):
            lines.append((label, (rounds, values)))
    if len(lines) < 2:
        return None
    figure, axes = new_figure(height=3.4)
    for index, (label, (rounds, values)) in enumerate(lines):
        _line(axes, index, rounds, values[None], label)
    _finish(axes, shown, "round", [label for label, _ in lines])
    return figure


def draw_traffic(groups: Sequence[Group], shown: Reported) -> Figure | None:
    """The reported column over the bytes that all clients have sent and received; None if nothing was sent."""
    if not any(run.total_bytes()[-1] for group in groups for run in group.runs):
        return None
    figure, axes = new_figure(height=3.2)
    for index, group in enumerate(groups):
        rounds, values = _common([run.series(shown.column) for run in group.runs])
        sent = np.mean([np.interp(rounds, run.metrics["round"], run.total_bytes()) for run in group.runs], axis=0)
        _line(axes, index, sent, values, group.label)
    as_bytes(axes)
    _finish(axes, shown, "bytes of all clients, up and down", [group.label for group in groups])
    return figure


def draw_sweep(groups: Sequence[Group], shown: Reported) -> tuple[Figure, str] | None:
    """The last value against a numeric key, if groups differ by nothing but this key; None otherwise."""
    key = swept_key(groups)
    if key is None:
        return None
    points = sorted(groups, key=lambda group: float(group.settings[key]))
    x = np.array([float(group.settings[key]) for group in points])
    last = [np.array([run.series(shown.column)[1][-1] for run in group.runs]) for group in points]
    figure, axes = new_figure()
    middle, spread = np.array([v.mean() for v in last]), np.array([v.std() for v in last])
    axes.errorbar(x, middle, spread, color=color(0), marker="o", capsize=3)
    if (x > 0).all() and x.max() / x.min() > 50:
        axes.set_xscale("log")
    _finish(axes, shown, key, [])
    return figure, key


def swept_key(groups: Sequence[Group]) -> str | None:
    """The only key by which at least three groups differ, if its values are numbers."""
    keys = {key for group in groups for key in group.settings}
    keys = {key for key in keys if len({repr(group.settings.get(key)) for group in groups}) > 1}
    if len(groups) < 3 or len(keys) != 1:
        return None
    (key,) = keys
    numbers = all(type(group.settings.get(key)) in (int, float) for group in groups)
    return key if numbers else None


def _common(series: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """The rounds that all seeds have, and their values. # [rounds], [seeds, rounds]"""
    rounds = series[0][0]
    for other, _ in series[1:]:
        rounds = np.intersect1d(rounds, other)
    return rounds, np.stack([values[np.isin(own, rounds)] for own, values in series])


def _line(axes: Axes, index: int, x: Floats, values: Floats, label: str) -> None:
    """The mean of some seeds, and a band of one standard deviation."""
    style = {"color": color(index), "linestyle": dashes(index)}
    marks = marker(index) if len(x) <= FEW_POINTS else ""
    axes.plot(x, values.mean(axis=0), label=label, marker=marks, **style)  # type: ignore[arg-type]
    if len(values) > 1:
        low, high = values.mean(axis=0) - values.std(axis=0), values.mean(axis=0) + values.std(axis=0)
        axes.fill_between(x, low, high, color=color(index), alpha=0.18, linewidth=0)


def _finish(axes: Axes, shown: Reported, x_label: str, labels: Sequence[str]) -> None:
    axes.set_xlabel(x_label)
    axes.set_ylabel(shown.axis)
    if shown.metric.percent:
        as_percent(axes)
    legend_below(axes, labels)
