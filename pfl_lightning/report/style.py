"""The look of all figures: narrow enough for a phone, colours that colour-blind readers can tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

WIDTH, HEIGHT = 4.2, 2.9
"""Inches of a figure. A phone shows it nearly at this size, so its text stays legible."""
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D1F")
"""The palette of Okabe and Ito, in an order that keeps neighbours apart."""
LEGEND_LINE = 0.18
"""Inches of a line of the legend. The figure grows by them, so that the axes keep their height."""
BYTES = ("B", "KiB", "MiB", "GiB", "TiB")
DASHES: tuple[str, ...] = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "svg.hashsalt": "pfl-report",
}
"""For `matplotlib.rc_context`, because importing this module must not change the user's own figures."""


def new_figure(height: float = HEIGHT, width: float = WIDTH) -> tuple[Figure, Axes]:
    """An empty figure with one set of axes."""
    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    return figure, figure.add_subplot()


def color(index: int) -> str:
    """The colour of the line number `index`."""
    return COLORS[index % len(COLORS)]


def dashes(index: int) -> str:
    """The pattern of the line number `index`. Lines of the same colour have different patterns."""
    return DASHES[index // len(COLORS) % len(DASHES)]


def marker(index: int) -> str:
    """The marker of the line number `index`, so that lines differ without colour too."""
    return MARKERS[index % len(MARKERS)]


def as_percent(axes: Axes, axis: str = "y") -> None:
    """Show fractions in percent."""
    getattr(axes, f"{axis}axis").set_major_formatter(PercentFormatter(1.0, decimals=None))


def unit_of_bytes(largest: float) -> tuple[float, str]:
    """The unit that fits the largest number of bytes in a figure, as the table and the page have it: bytes, name."""
    power = 0
    while largest >= 1024 ** (power + 1) and power < len(BYTES) - 1:
        power += 1
    return 1024.0**power, BYTES[power]


def legend_below(axes: Axes, names: Sequence[str], least: int = 2) -> None:
    """A legend under the axes, in as many columns as fit, if there are at least `least` names."""
    if len(names) >= least:
        columns = max(1, min(3, len(names), 40 // (max(map(len, names)) + 5)))
        figure = axes.get_figure(root=True)
        assert figure is not None
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns, frameon=False)
        lines = -(-len(names) // columns)
        figure.set_figheight(figure.get_figheight() + LEGEND_LINE * max(0, lines - 1))


def whole_rounds(axes: Axes) -> None:
    """Rounds on the x axis are whole numbers, also where there is only one."""
    low, high = axes.get_xlim()
    if high - low < 1:
        axes.set_xlim(low - 1, high + 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("round")
