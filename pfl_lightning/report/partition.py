"""A picture of who has what: the labels of each client's training samples as stacked bars."""

from __future__ import annotations

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

MOST_BARS = 1000
MOST_LEGEND = 20
MOST_SEPARATE = 120


def draw_partition(label_counts: Tensor) -> Figure:
    """Draw training samples per client, coloured by label.

    More than 120 clients are ordered by their most frequent label and then by size, or their bars would look like
    noise; more than 1000 are drawn as the means of groups of neighbours in that order.

    Args:
        label_counts: training samples of each class at each client. # [num_clients, num_classes]
    """
    counts: NDArray[np.float64] = label_counts.cpu().numpy().astype(np.float64)
    num_clients, num_classes = counts.shape
    if num_clients > MOST_SEPARATE:
        counts = counts[np.lexsort((counts.sum(axis=1), counts.argmax(axis=1)))]
    bars, group = _grouped(counts)
    colors = _colors(num_classes)
    figure = Figure(figsize=(min(14.0, 7.5 + 0.055 * len(bars)), 4.4), dpi=110, layout="constrained")
    axes: Axes = figure.add_subplot()
    _stack(axes, bars, group, colors)
    _describe(axes, counts.sum(axis=1), group)
    if num_classes <= MOST_LEGEND:
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(
            handles[::-1],
            labels[::-1],
            title="label",
            loc="center left",
            bbox_to_anchor=(1.005, 0.5),
            frameon=False,
            handlelength=1.0,
            handleheight=1.0,
            labelspacing=0.35,
            ncols=1 + (num_classes > 10),
        )
    else:
        shown = ScalarMappable(Normalize(-0.5, num_classes - 0.5), ListedColormap(colors))
        figure.colorbar(shown, ax=axes, label="label", pad=0.01, aspect=30).outline.set_visible(False)
    return figure


def _grouped(counts: NDArray[np.float64]) -> tuple[NDArray[np.float64], int]:
    """Means over groups of neighbours, at most `MOST_BARS` of them, and the size of a group."""
    group = -(-len(counts) // MOST_BARS)
    starts = np.arange(0, len(counts), group)
    sizes = np.diff(np.append(starts, len(counts)))
    return np.add.reduceat(counts, starts, axis=0) / sizes[:, None], group


def _colors(num_classes: int) -> list[tuple[float, float, float, float]]:
    if num_classes <= 10:
        return [matplotlib.colormaps["tab10"](label) for label in range(num_classes)]
    if num_classes <= MOST_LEGEND:
        return [matplotlib.colormaps["tab20"](label) for label in range(num_classes)]
    return [matplotlib.colormaps["turbo"](place) for place in np.linspace(0.03, 0.97, num_classes)]


def _stack(axes: Axes, bars: NDArray[np.float64], group: int, colors: list[tuple[float, float, float, float]]) -> None:
    edges = (np.arange(len(bars) + 1) - 0.5) * group
    tops = np.cumsum(np.pad(bars, ((0, 0), (1, 0))), axis=1)
    # one shape per class, not one per bar, or a thousand clients would take minutes
    steps = np.vstack([tops, tops[-1:]])
    for label, color in enumerate(colors):
        axes.fill_between(
            edges, steps[:, label], steps[:, label + 1], step="post", color=color, linewidth=0, label=str(label)
        )
    if len(bars) <= MOST_SEPARATE:
        axes.vlines(edges, 0, tops[:, -1].max() * 1.03, color="white", linewidth=min(6.0, 90 / len(bars)))
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, tops[:, -1].max() * 1.03)


def _describe(axes: Axes, sizes: NDArray[np.float64], group: int) -> None:
    axes.set_title("Training samples of each client by label", loc="left", fontsize=12, fontweight="bold", pad=20)
    spread = f"smallest {sizes.min():,.0f}, median {np.median(sizes):,.0f}, largest {sizes.max():,.0f}"
    facts = f"{len(sizes):,} clients, {sizes.sum():,.0f} samples; {spread}"
    axes.text(0, 1.02, facts, transform=axes.transAxes, fontsize=9, color="0.35")
    ordered = "clients by most frequent label, then by size"
    axes.set_xlabel("client" if len(sizes) <= MOST_SEPARATE else ordered + f" (means of {group})" * (group > 1))
    axes.set_ylabel("samples")
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.tick_params(axis="x", length=0)
    if len(sizes) <= 20:
        axes.set_xticks(range(len(sizes)))
    axes.yaxis.grid(True, color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
