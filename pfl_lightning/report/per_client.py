"""The results of single clients, sorted, and compared with training alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pfl_lightning.report.groups import Group, Reported
from pfl_lightning.report.picked import GREY, in_colour, line_label
from pfl_lightning.report.run_data import RunData
from pfl_lightning.report.style import DASHES, as_percent, color, legend_below, new_figure

Floats = NDArray[np.float64]
LOCAL = "Local"


def client_values(run: RunData, shown: Reported) -> Floats | None:
    """The reported value of each client at the last evaluation, NaN if it was not tested. None if nobody knows."""
    column = shown.column_of(run).removesuffix("_pooled").removesuffix("_worst10")
    values = run.clients.get(column, run.clients.get(f"all_{column}"))
    return None if values is None or np.isnan(values).all() else values


def draw_clients(groups: Sequence[Group], shown: Reported) -> Figure | None:
    """Each client's result, every run sorted by itself from worst to best. None without clients.csv."""
    lines = [
        (line_label(group, shown), values, index)
        for group, index in in_colour(groups, shown)
        if (values := client_values(group.first, shown)) is not None
    ]
    if not lines:
        return None
    figure, axes = new_figure(height=3.2)
    for label, values, index in lines:
        known = np.sort(values[~np.isnan(values)])[:: 1 if shown.metric.higher_is_better else -1]
        share = np.linspace(0, 1, len(known)) if len(known) > 1 else np.array([0.5])
        axes.plot(share, known, **_look(index, label))
    as_percent(axes, "x")
    axes.set_xlabel("clients, worst to best (% of all)")
    axes.set_ylabel(shown.axis)
    if shown.metric.percent:
        as_percent(axes)
    legend_below(axes, [label for label, _, index in lines if index is not None])
    return figure


def _look(index: int | None, label: str) -> dict[str, Any]:
    return GREY if index is None else {"color": color(index), "linestyle": DASHES[index % len(DASHES)], "label": label}


def gains(groups: Sequence[Group], shown: Reported) -> list[tuple[Group, Floats]]:
    """For each method, how much each client gains over training alone, all seeds together. Positive is better.

    Only runs on the same clients with the same net and seed that were evaluated in the same round are compared.
    """
    alone = [run for group in groups if group.first.method == LOCAL for run in group.runs]
    found: list[tuple[Group, Floats]] = []
    for group in groups:
        own = [] if group.first.method == LOCAL else group.runs
        pairs = [(run, other) for run in own if (other := next((one for one in alone if _alike(run, one)), None))]
        differences = [gain for pair in pairs if (gain := _gain(*pair, shown)) is not None]
        if differences:
            found.append((group, np.concatenate(differences)))
    return found


def _alike(run: RunData, other: RunData) -> bool:
    """Whether two runs differ by their method only."""
    same_clients = run.facts == other.facts and run.seed == other.seed
    return same_clients and run.net == other.net and run.evaluated == other.evaluated


def _gain(run: RunData, alone: RunData, shown: Reported) -> Floats | None:
    values, others = client_values(run, shown), client_values(alone, shown)
    if values is None or others is None or len(values) != len(others):
        return None
    gain: Floats = (values - others) * (1 if shown.metric.higher_is_better else -1)
    return gain[~np.isnan(gain)]


def draw_gains(groups: Sequence[Group], shown: Reported) -> Figure | None:
    """The gain of each client over a Local run, sorted. None without a Local run on the same clients."""
    lines = gains(groups, shown)
    if not lines:
        return None
    figure, axes = new_figure(height=3.2)
    labels = []
    by_group = {id(group): gain for group, gain in lines}
    for group, index in in_colour(groups, shown):  # the colours of the other figures
        gain = by_group.get(id(group))
        if gain is None:
            continue
        label = f"{line_label(group, shown)}: {100 * np.mean(gain < 0):.0f} % of clients do worse"
        labels += [label] if index is not None else []
        share = np.linspace(0, 1, len(gain)) if len(gain) > 1 else np.array([0.5])
        axes.plot(share, np.sort(gain), **_look(index, label))
    axes.axhline(0, color="0.3", linewidth=0.9)
    as_percent(axes, "x")
    axes.set_xlabel("clients, sorted by gain (% of all)")
    unit = "percentage points" if shown.metric.percent else "units of the target"
    axes.set_ylabel(f"gain over Local\n({unit})")
    if shown.metric.percent:
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:+.0f}")
    legend_below(axes, labels, least=1)
    return figure
