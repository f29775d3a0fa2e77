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
    """The reported value of each client at the last evaluation, NaN if it was not tested; None if nobody knows."""
    column = shown.column_of(run).removesuffix("_pooled").removesuffix("_worst10")
    values = run.clients.get(column, run.clients.get(f"all_{column}"))
    return None if values is None or np.isnan(values).all() else values


def draw_clients(groups: Sequence[Group], shown: Reported) -> Figure | None:
    """Each client's result, every run sorted by itself from worst to best; None without clients.csv."""
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
    """For each method, how much each client gains over training alone. Positive is better.

    Only runs on the same clients that were evaluated in the same round are compared.
    """
    local = next((group for group in groups if group.first.method == LOCAL), None)
    alone = client_values(local.first, shown) if local else None
    found: list[tuple[Group, Floats]] = []
    for group in groups:
        values = client_values(group.first, shown)
        if group is local or local is None or alone is None or values is None:
            continue
        same_clients = group.first.facts == local.first.facts and len(values) == len(alone)
        if same_clients and group.first.evaluated == local.first.evaluated:
            gain = (values - alone) * (1 if shown.metric.higher_is_better else -1)
            found.append((group, gain[~np.isnan(gain)]))
    return found


def draw_gains(groups: Sequence[Group], shown: Reported) -> Figure | None:
    """The gain of each client over a Local run, sorted; None without a Local run on the same clients."""
    lines = gains(groups, shown)
    if not lines:
        return None
    figure, axes = new_figure(height=3.2)
    labels = []
    by_group = {id(group): gain for group, gain in lines}
    for group, index in in_colour([group for group, _ in lines], shown):
        gain = by_group[id(group)]
        label = f"{line_label(group, shown)}: {np.mean(gain < 0):.0%} of clients do worse"
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
