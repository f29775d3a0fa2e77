"""How often each parameter was personal (critical), for single tensors (FedPURIN's Figs 5 and 6)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.model.layout import Span
from pfl_lightning.report.mask_record import MaskHistory
from pfl_lightning.report.style import WIDTH, color

Floats = NDArray[np.float64]
BINS = 40
MOST_TENSORS = 6
FEW_CLIENTS = 5
SERVER = "S"


def most_visited(history: MaskHistory) -> list[int]:
    """The clients that were visited most often, at most five."""
    return sorted(np.argsort(-history.visits.numpy(), kind="stable")[:FEW_CLIENTS].tolist())


def shown_tensors(history: MaskHistory) -> list[str]:
    """The first weight of each block: in a ResNet the stem, the first convolution of each stage, and the head.

    These are the layers that the FedPURIN paper shows. Of more than six blocks some are left out, evenly.
    """
    weights = [span.name for span in history.layout.spans if len(span.shape) > 1]
    first: dict[tuple[str, ...], str] = {}
    for name in weights or [history.layout.spans[-1].name]:
        first.setdefault(tuple(name.split(".")[:-1][:3]), name)
    names = list(first.values())
    places = np.linspace(0, len(names) - 1, min(MOST_TENSORS, len(names)))
    return [names[round(place)] for place in dict.fromkeys(places)]


def check_choice(history: MaskHistory, tensors: Sequence[str], clients: Sequence[int]) -> None:
    """Refuse tensors and clients that the run does not have."""
    names = [span.name for span in history.layout.spans]
    for tensor in tensors:
        if tensor not in names:
            raise ConfigError(f"tensors: {tensor} is not in the model; use some of {', '.join(names)}")
    for client in clients:
        if not 0 <= client < len(history.visits):
            raise ConfigError(f"clients: {client} is not a client; use numbers from 0 to {len(history.visits) - 1}")


def activation_counts(history: MaskHistory, tensor: str, clients: Sequence[int]) -> Floats:
    """How often each parameter was personal: a row per client, then the server's non-zeros. # [clients + 1, n]

    Of a convolution this is the kernel of the first output channel, in the order (input, height, width).
    """
    rows = torch.vstack([history.counts[list(clients)], history.server[None]])
    counts = history.layout.views(rows)[tensor]
    if counts.ndim == 5:
        counts = counts[:, 0]
    return counts.reshape(len(rows), -1).double().numpy()


def draw_spread(history: MaskHistory, clients: Sequence[int], tensors: Sequence[str]) -> Figure:
    """The distribution of how often parameters were personal: a panel per tensor, a row per client and the server."""
    rows = len(clients) + 1
    columns = min(2, len(tensors))
    lines = -(-len(tensors) // columns)
    figure = Figure(figsize=(WIDTH, 0.5 + lines * (0.8 + 0.24 * rows)), dpi=110, layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False, sharex=True)
    edges = np.linspace(0, 1, min(BINS, history.rounds + 1) + 1)
    visits = np.maximum(1, [*history.visits[list(clients)].tolist(), history.rounds])
    for axes, tensor in zip(panels.flat, tensors, strict=False):
        for row, shares in enumerate(activation_counts(history, tensor, clients) / visits[:, None]):
            height = np.histogram(shares, edges)[0].astype(np.float64)
            base = rows - 1 - row
            tone = color(1) if row == rows - 1 else color(0)
            axes.stairs(base + 0.9 * height / max(1.0, height.max()), edges, baseline=base, fill=True, color=tone)
        axes.set_title(tensor.removeprefix("net."), fontsize=7.5)
        axes.set_xlim(0, 1)
        axes.set_yticks(range(rows - 1, -1, -1), [*map(str, clients), SERVER])
        axes.grid(False)
        axes.spines["left"].set_visible(False)
    for axes in panels.flat[len(tensors) :]:
        axes.set_visible(False)
    figure.supxlabel("share of visits with the parameter personal (S: share of rounds, non-zero)", fontsize=7.5)
    figure.supylabel("client (S: server)", fontsize=8.5)
    return figure


def draw_heat(history: MaskHistory, clients: Sequence[int], tensors: Sequence[str]) -> Figure:
    """The counts as images: a row per tensor, a column per client and one for the server. Darker is more often."""
    columns = len(clients) + 1
    size = (max(WIDTH, 0.85 * columns + 0.9), 1.0 * len(tensors) + 0.9)
    figure = Figure(figsize=size, dpi=110, layout="constrained")
    panels = figure.subplots(len(tensors), columns, squeeze=False)
    spans = {span.name: span for span in history.layout.spans}
    for row, tensor in enumerate(tensors):
        for column, counts in enumerate(activation_counts(history, tensor, clients)):
            axes: Axes = panels[row, column]
            picture = counts.reshape(_picture_shape(spans[tensor]))
            image = axes.imshow(picture, aspect="auto", cmap="Blues", vmin=0, vmax=max(1, history.rounds))
            axes.set_xticks([])
            axes.set_yticks([])
            if row == 0:
                axes.set_title(SERVER if column == columns - 1 else f"client {clients[column]}", fontsize=7.5)
            if column == 0:
                axes.set_ylabel(tensor.removeprefix("net.").replace(".", ".\n"), fontsize=6.5)
    figure.colorbar(
        image, ax=panels, label="rounds", location="bottom", shrink=0.8, aspect=40, pad=0.02,
        ticks=MaxNLocator(6, integer=True),
    )  # fmt: skip
    return figure


def _picture_shape(span: Span) -> tuple[int, int]:
    """Rows and columns of the image: input channels x kernel places, outputs x inputs, or one row."""
    if len(span.shape) == 4:
        return span.shape[1], span.shape[2] * span.shape[3]
    return (span.shape[0], -1) if len(span.shape) > 1 else (1, -1)
