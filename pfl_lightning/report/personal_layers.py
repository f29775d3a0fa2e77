"""Where the personal parameters lie, over the rounds."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pfl_lightning.report.run_data import PersonalEntries
from pfl_lightning.report.style import as_percent, color, dashes, legend_below, new_figure, whole_rounds

Floats = NDArray[np.float64]
MOST_LINES = 8
MOST_NAMED = 2
SAME_LINE = 0.003
"""Difference of two shares that a figure does not show."""


def by_layer(personal: PersonalEntries) -> PersonalEntries:
    """The same counts per layer: weight and bias of a module together."""
    layers = tuple(dict.fromkeys(_layer(name) for name in personal.tensors))
    member = np.array([[_layer(name) == layer for layer in layers] for name in personal.tensors], dtype=np.float64)
    return PersonalEntries(personal.rounds, layers, personal.sizes @ member, personal.counts @ member)


def draw_share_of_personal(personal: PersonalEntries) -> Figure:
    """The share of all personal parameters that lies in each layer (FedOBP's Fig. 5)."""
    layers = by_layer(personal)
    return _draw(layers, layers.share_of_personal, "share of all personal parameters (%)")


def draw_share_of_tensor(personal: PersonalEntries) -> Figure:
    """The share of each tensor that is personal."""
    return _draw(personal, personal.share_of_tensor, "personal share of tensor (%)")


def _draw(personal: PersonalEntries, shares: Floats, label: str) -> Figure:
    names = [name.removeprefix("net.") for name in personal.tensors]
    if len(names) <= MOST_LINES:
        return _lines(personal.rounds, names, shares, label)
    figure, axes = new_figure(height=min(9.0, 1.2 + 0.17 * len(names)))
    high = max(float(shares.max()), 1e-9)
    image = axes.imshow(shares.T, aspect="auto", cmap="cividis", vmin=0, vmax=high, interpolation="nearest")
    bar = figure.colorbar(image, ax=axes, label=label, location="bottom", shrink=0.9)
    bar.ax.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}")
    bar.outline.set_visible(False)
    axes.grid(False)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    places = np.unique(np.linspace(0, len(personal.rounds) - 1, min(6, len(personal.rounds))).astype(int))
    axes.set_xticks(places, [f"{personal.rounds[place]:.0f}" for place in places])
    axes.set_xlabel("round")
    return figure


def _lines(rounds: Floats, names: list[str], shares: Floats, label: str) -> Figure:
    figure, axes = new_figure(height=3.4)
    marks = "o" if len(rounds) < 4 else ""
    lines = merged(names, shares)
    for index, (name, values) in enumerate(lines):
        axes.plot(rounds, values, label=name, color=color(index), linestyle=dashes(index), marker=marks)
    as_percent(axes)
    axes.set_ylim(bottom=-0.03 * axes.get_ylim()[1])  # a line at 0 is not cut in half
    whole_rounds(axes)
    axes.set_ylabel(label)
    legend_below(axes, [name for name, _ in lines], least=1)
    return figure


def merged(names: list[str], shares: Floats) -> list[tuple[str, Floats]]:
    """One line for all tensors that nobody could tell apart, because their lines would lie on each other.

    Args:
        names: of the tensors or layers.
        shares: # [rounds, tensors]
    """
    groups: list[list[int]] = []
    for index in range(len(names)):
        like = (group for group in groups if np.abs(shares[:, group[0]] - shares[:, index]).max() < SAME_LINE)
        if (group := next(like, None)) is not None:
            group.append(index)
        else:
            groups.append([index])
    return [(_joined([names[index] for index in group], len(names)), shares[:, group[0]]) for group in groups]


def _joined(names: list[str], count: int) -> str:
    if len(names) == count > 1:
        return f"all {count}, the same"
    return ", ".join(names) if len(names) <= MOST_NAMED else f"{names[0]} and {len(names) - 1} more"


def _layer(name: str) -> str:
    return name.rpartition(".")[0] or name
