"""A picture of the partition: the labels of each client's training samples as stacked bars."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize, to_rgba
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from pfl_lightning.report.style import HEIGHT, WIDTH

MOST_BARS = 1000
MOST_LEGEND = 20
MOST_SEPARATE = 120
LABEL_COLORS = (
    "#332288", "#88CCEE", "#117733", "#DDCC77", "#CC6677", "#882255", "#44AA99", "#AA4499", "#999933", "#BBBBBB",
)  # fmt: skip
"""Paul Tol's muted palette, which colour-blind readers can tell apart."""
Color = tuple[float, float, float, float]


def draw_partition(label_counts: Tensor, names: Sequence[str] | None = None) -> Figure:
    """Draw training samples per client, coloured by label.

    More than 120 clients are ordered by their most frequent label and then by size, because their bars would look like
    noise otherwise. More than 1000 are drawn as the means of groups of neighbours in that order.

    Args:
        label_counts: training samples of each class at each client. # [num_clients, num_classes]
        names: of the classes. Their numbers by default.
    """
    counts: NDArray[np.float64] = label_counts.cpu().numpy().astype(np.float64)
    num_clients, num_classes = counts.shape
    if num_clients > MOST_SEPARATE:
        counts = counts[np.lexsort((counts.sum(axis=1), counts.argmax(axis=1)))]
    bars, group = _grouped(counts)
    colors = _colors(num_classes)
    figure = Figure(figsize=(WIDTH, HEIGHT + 0.5), dpi=110, layout="constrained")
    axes: Axes = figure.add_subplot()
    _stack(axes, bars, group, colors, names or [str(label) for label in range(num_classes)])
    _describe(axes, counts.sum(axis=1), group)
    if 1 < num_classes <= MOST_LEGEND:
        columns = 5 if max(map(len, names or [""])) <= 6 else 2
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(
            handles, labels, title="label", loc="outside lower center", ncols=columns, frameon=False, handlelength=1.0
        )
    elif num_classes > MOST_LEGEND:
        shown = ScalarMappable(Normalize(-0.5, num_classes - 0.5), ListedColormap(colors))
        bar = figure.colorbar(shown, ax=axes, label="label", location="bottom", shrink=0.9, aspect=40)
        bar.outline.set_visible(False)
    return figure


def _grouped(counts: NDArray[np.float64]) -> tuple[NDArray[np.float64], int]:
    """Means over groups of neighbours, at most `MOST_BARS` of them, and the size of a group."""
    group = -(-len(counts) // MOST_BARS)
    starts = np.arange(0, len(counts), group)
    sizes = np.diff(np.append(starts, len(counts)))
    return np.add.reduceat(counts, starts, axis=0) / sizes[:, None], group


def _colors(num_classes: int) -> list[Color]:
    if num_classes <= len(LABEL_COLORS):
        return [to_rgba(color) for color in LABEL_COLORS[:num_classes]]
    return [matplotlib.colormaps["viridis"](place) for place in np.linspace(0, 1, num_classes)]


def _stack(axes: Axes, bars: NDArray[np.float64], group: int, colors: Sequence[Color], names: Sequence[str]) -> None:
    edges = (np.arange(len(bars) + 1) - 0.5) * group
    tops = np.cumsum(np.pad(bars, ((0, 0), (1, 0))), axis=1)
    # one shape per class instead of one per bar, because a thousand clients would take minutes otherwise
    steps = np.vstack([tops, tops[-1:]])
    for label, (color, name) in enumerate(zip(colors, names, strict=True)):
        low, high = steps[:, label], steps[:, label + 1]
        axes.fill_between(edges, low, high, step="post", color=color, linewidth=0, label=name)
    if len(bars) <= MOST_SEPARATE:
        axes.vlines(edges, 0, tops[:, -1].max() * 1.03, color="white", linewidth=min(4.0, 50 / len(bars)))
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, tops[:, -1].max() * 1.03)


def _describe(axes: Axes, sizes: NDArray[np.float64], group: int) -> None:
    spread = f"smallest {sizes.min():,.0f}, median {np.median(sizes):,.0f}, largest {sizes.max():,.0f}"
    axes.set_title(f"{len(sizes):,} clients, {sizes.sum():,.0f} samples\n{spread}", loc="left", fontsize=8)
    ordered = "clients by most frequent label, then by size"
    axes.set_xlabel("client" if len(sizes) <= MOST_SEPARATE else ordered + f" (means of {group})" * (group > 1))
    axes.set_ylabel("training samples")
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.tick_params(axis="x", length=0)
    if len(sizes) <= 20:
        axes.set_xticks(range(len(sizes)))
    axes.xaxis.grid(False)
    axes.yaxis.grid(True, color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
