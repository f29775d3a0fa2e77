"""Pictures of masks: how alike the clients' are (FedSelect, Fig. 4), what they choose in time (FedPURIN, Fig. 5, 6)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from pfl_lightning import masks
from pfl_lightning.report.mask_record import MaskHistory
from pfl_lightning.vector import Span

Floats = NDArray[np.float64]
BINS = 40


def pairwise_iou(rows: Tensor) -> Floats:
    """Intersection over union of each pair of masks; 1 for two empty ones.

    Args:
        rows: bool [clients, n].
    """
    return np.array([[masks.iou(a, b) for b in rows] for a in rows], dtype=np.float64)


def iou_by_label(history: MaskHistory, layer: str) -> tuple[Floats, list[str]]:
    """The clients' masks in one layer compared, ordered by their labels, and a name for each row: its main labels.

    Clients without a personal parameter anywhere, such as those that were never visited, are left out.
    """
    counts = history.label_counts.numpy()
    seen = history.last.any(dim=1).nonzero().flatten().tolist()
    main = {client: _main_labels(counts[client]) for client in seen}
    order = sorted(seen, key=lambda client: (main[client], client))
    rows = history.last[order][:, history.columns(layer)]
    return pairwise_iou(rows), [",".join(map(str, main[client])) for client in order]


def draw_iou(matrix: Floats, labels: Sequence[str], layer: str) -> Figure:
    """The matrix as an image; numbers are written where they can be read."""
    size = min(12.0, 2.8 + 0.32 * len(matrix))
    figure = Figure(figsize=(size + 0.9, size), dpi=110, layout="constrained")
    axes: Axes = figure.add_subplot()
    others = matrix[~np.eye(len(matrix), dtype=bool)]
    low, high = (float(others.min()), float(others.max())) if len(others) else (0.0, 1.0)
    image = axes.imshow(matrix, cmap="viridis", vmin=low, vmax=high if high > low else low + 1e-9)
    figure.colorbar(image, ax=axes, label="intersection over union", shrink=0.85).outline.set_visible(False)
    if len(matrix) <= 15:
        for i, j in np.ndindex(matrix.shape):
            light = matrix[i, j] < (low + high) / 2
            axes.text(j, i, f"{matrix[i, j]:.2f}", ha="center", va="center", fontsize=7, color="1" if light else "0")
    if len(matrix) <= 40:
        axes.set_xticks(range(len(labels)), labels, rotation=90, fontsize=8)
        axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set_xlabel("client, by its main labels")
    axes.set_title(f"How alike the clients' personal parameters are in {layer}", loc="left", fontsize=11)
    return figure


def shown_tensors(history: MaskHistory, most: int = 5) -> list[str]:
    """Weights of layers, spread evenly from the first to the last."""
    names = [span.name for span in history.layout.spans if len(span.shape) > 1] or [history.layout.spans[-1].name]
    return [names[round(i)] for i in dict.fromkeys(np.linspace(0, len(names) - 1, min(most, len(names))))]


def activation_counts(history: MaskHistory, tensor: str, clients: Sequence[int]) -> Floats:
    """How often each parameter was chosen: a row per client, the server's non-zeros last. # [clients + 1, n]

    Of a convolution the kernel of the first output channel, in the order (input, height, width).
    """
    rows = torch.vstack([history.counts[list(clients)], history.server[None]])
    counts = history.layout.views(rows)[tensor]
    if counts.ndim == 5:
        counts = counts[:, 0]
    return counts.reshape(len(rows), -1).double().numpy()


def draw_activation_spread(
    history: MaskHistory, clients: Sequence[int], tensors: Sequence[str] | None = None
) -> Figure:
    """For each tensor the distribution of how often its parameters were chosen, a ridge per client and the server."""
    tensors = shown_tensors(history) if tensors is None else tensors
    figure = Figure(figsize=(2.6 * len(tensors) + 0.6, 0.55 * (len(clients) + 1) + 1.4), dpi=110, layout="constrained")
    figure.suptitle("Share of rounds in which a parameter was chosen", x=0.01, ha="left", fontsize=11)
    panels = figure.subplots(1, len(tensors), sharey=True, squeeze=False)[0]
    bins = min(BINS, history.rounds + 1)
    centers = (np.arange(bins) + 0.5) / bins
    of = np.maximum(1, [*history.visits[list(clients)].tolist(), history.rounds])
    for axes, tensor in zip(panels, tensors, strict=True):
        for row, shares in enumerate(activation_counts(history, tensor, clients) / of[:, None]):
            height = np.histogram(shares, bins, (0, 1))[0].astype(np.float64)
            base, height = len(clients) - row, 0.9 * height / max(1.0, height.max())
            color = "C1" if row == len(clients) else "C0"
            axes.fill_between(centers, base, base + height, step="mid", color=color, alpha=0.75, linewidth=0)
        axes.set_title(tensor, fontsize=8)
        axes.set_xlim(0, 1)
        axes.spines[["top", "right", "left"]].set_visible(False)
    panels[0].set_yticks(range(len(clients), -1, -1), [*map(str, clients), "S"])
    return figure


def draw_activation_heat(history: MaskHistory, clients: Sequence[int], tensors: Sequence[str] | None = None) -> Figure:
    """Counts as images: a row per client and one for the server, a column per tensor; darker is more often."""
    tensors = shown_tensors(history) if tensors is None else tensors
    rows = len(clients) + 1
    figure = Figure(figsize=(2.4 * len(tensors) + 0.8, 1.3 * rows + 0.8), dpi=110, layout="constrained")
    figure.suptitle("Rounds in which each parameter was chosen", x=0.01, ha="left", fontsize=11)
    panels = figure.subplots(rows, len(tensors), squeeze=False)
    shapes = {span.name: span for span in history.layout.spans}
    for column, tensor in enumerate(tensors):
        for row, counts in enumerate(activation_counts(history, tensor, clients)):
            axes: Axes = panels[row, column]
            image = axes.imshow(
                counts.reshape(_picture_shape(shapes[tensor])), aspect="auto", cmap="Blues", vmin=0, vmax=history.rounds
            )
            axes.set_xticks([])
            axes.set_yticks([])
            if row == 0:
                axes.set_title(tensor, fontsize=8)
            if column == 0:
                axes.set_ylabel("S" if row == len(clients) else str(clients[row]), rotation=0, ha="right", va="center")
    figure.colorbar(image, ax=panels, label="rounds", pad=0.01, aspect=40)
    return figure


def _picture_shape(span: Span) -> tuple[int, int]:
    """Rows and columns of the image: input channels x kernel places, outputs x inputs, or one row."""
    if len(span.shape) == 4:
        return span.shape[1], span.shape[2] * span.shape[3]
    return (span.shape[0], -1) if len(span.shape) > 1 else (1, -1)


def _main_labels(counts: NDArray[np.int64]) -> tuple[int, ...]:
    """The classes that make up at least a tenth of the client's samples, ascending."""
    return tuple(int(label) for label in np.flatnonzero(counts * 10 >= max(1, counts.sum())))
