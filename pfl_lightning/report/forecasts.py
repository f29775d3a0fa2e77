"""Forecasts against the truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pfl_lightning.report.style import HEIGHT, WIDTH, color

MOST_STEPS = 120


class Forecast(NamedTuple):
    """The test samples of one client, in their order."""

    name: str
    inputs: NDArray[np.float64]
    """The only input of each sample. Empty if samples have several. # [n] or [0]"""
    truth: NDArray[np.float64]
    """# [n]"""
    predicted: NDArray[np.float64]
    """# [n]"""


def draw_forecasts(forecasts: Sequence[Forecast]) -> Figure:
    """A panel per client: truth and prediction along the test samples, or against the only input."""
    rows = len(forecasts)
    figure = Figure(figsize=(WIDTH, max(HEIGHT, 0.9 + 1.45 * rows)), dpi=110, layout="constrained")
    panels = figure.subplots(rows, 1, squeeze=False)[:, 0]
    for axes, forecast in zip(panels, forecasts, strict=True):
        against_input = len(forecast.inputs) == len(forecast.truth)
        order = np.argsort(forecast.inputs) if against_input else np.arange(len(forecast.truth))[:MOST_STEPS]
        x = forecast.inputs[order] if against_input else order
        axes.plot(x, forecast.truth[order], color=color(0), label="truth", marker="." if against_input else "")
        axes.plot(x, forecast.predicted[order], color=color(1), linestyle="--", label="predicted")
        axes.set_title(f"client {forecast.name}", loc="left")
        axes.set_ylabel("target")
    panels[-1].set_xlabel("input" if against_input else "test sample, in order of time")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure
