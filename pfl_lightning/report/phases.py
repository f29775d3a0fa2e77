"""The time that ranks spent in each phase of the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pfl_lightning.report.groups import Group
from pfl_lightning.report.run_data import RunData
from pfl_lightning.report.style import legend_below, new_figure

COLORS = ("#332288", "#88CCEE", "#117733", "#DDCC77", "#CC6677", "#882255", "#44AA99", "#AA4499", "#999933")
"""Paul Tol's muted palette, which colour-blind readers can tell apart."""
HATCHES = ("", "", "", "", "", "", "", "", "", "//", "..", "xx")


def phase_seconds(run: RunData) -> dict[str, float]:
    """Seconds of each phase, mean over the ranks. Empty while the run is not finished."""
    ranks = run.summary.get("phase_seconds") or []
    names = dict.fromkeys(name for rank in ranks for name in rank)
    return {name: float(np.mean([rank.get(name, 0.0) for rank in ranks])) for name in names}


def draw_phases(groups: Sequence[Group]) -> Figure | None:
    """A bar per group, mean over its seeds. None if no run is finished."""
    bars = [(group.label, [phase_seconds(run) for run in group.runs if run.summary]) for group in groups]
    bars = [(label, runs) for label, runs in bars if any(runs)]
    if not bars:
        return None
    names = list(dict.fromkeys(name for _, runs in bars for run in runs for name in run))
    figure, axes = new_figure(height=1.6 + 0.35 * len(bars))
    left = np.zeros(len(bars))
    for index, name in enumerate(names):
        seconds = np.array([np.mean([run.get(name, 0.0) for run in runs]) for _, runs in bars])
        look: dict[str, Any] = {"color": COLORS[index % len(COLORS)], "hatch": HATCHES[index % len(HATCHES)]}
        axes.barh(range(len(bars)), seconds, left=left, label=name, edgecolor="white", linewidth=0.5, **look)
        left += seconds
    axes.set_yticks(range(len(bars)), [label for label, _ in bars])
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set_xlabel("seconds of a rank")
    axes.xaxis.set_major_locator(MaxNLocator(5))  # more numbers run into each other where they are small
    legend_below(axes, names)
    return figure
