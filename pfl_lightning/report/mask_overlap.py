"""How similar the personal parameters of clients are (FedSelect's Fig. 4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.foundation.state import State
from pfl_lightning.report.run_data import PersonalEntries
from pfl_lightning.report.style import WIDTH, new_figure

Floats = NDArray[np.float64]
MOST_CLIENTS = 200
"""Clients compared with each other."""
MOST_NUMBERS, MOST_NAMES = 12, 40


def layer_columns(personal: PersonalEntries, layer: str) -> slice:
    """The entries of a tensor or layer such as `net.head` in the flat vector of parameters."""
    ends = np.cumsum(personal.sizes).astype(int)
    places = [i for i, name in enumerate(personal.tensors) if name == layer or name.startswith(f"{layer}.")]
    if not places:
        raise ConfigError(f"layer: {layer!r} is not in the model; use one of {', '.join(personal.tensors)}")
    return slice(int(ends[places[0]] - personal.sizes[places[0]]), int(ends[places[-1]]))


def default_layer(personal: PersonalEntries) -> str | None:
    """The last partly personal layer. None if masks are made of whole tensors, since all are equal then."""
    shares = personal.share_of_tensor[-1]
    partly = [name for name, share in zip(personal.tensors, shares, strict=True) if 0 < share < 1]
    return partly[-1].rpartition(".")[0] or partly[-1] if partly else None


def masks_of_layer(states: Iterable[tuple[int, State]], columns: slice) -> dict[int, Tensor]:
    """The masks of clients that have any personal entry, in one layer, bool [n]."""
    found: dict[int, Tensor] = {}
    for client, state in states:
        if "mask" in state:
            bits = np.unpackbits(state["mask"].numpy(), count=columns.stop, bitorder="little")
            found[client] = torch.from_numpy(bits[columns].astype(bool))
    return found


def overlap(masks: Sequence[Tensor]) -> Floats:
    """Intersection over union of each pair of masks. 1 for two empty ones. # [clients, clients]"""
    rows = torch.stack(list(masks)).float()
    both = (rows @ rows.T).double().numpy()
    counts = np.diag(both)
    union = counts[:, None] + counts[None, :] - both
    return np.where(union > 0, both / np.maximum(union, 1), 1.0)


def by_label(clients: Sequence[int], counts: NDArray[np.int64]) -> tuple[list[int], list[str]]:
    """Clients ordered by their main labels, and these labels: those of at least a tenth of the client's samples.

    Args:
        clients: their numbers.
        counts: samples of each class at all clients. Empty if there are no classes.
    """
    if not counts.size:
        return sorted(clients), [str(client) for client in sorted(clients)]
    main = {client: tuple(np.flatnonzero(counts[client] * 10 >= max(1, counts[client].sum()))) for client in clients}
    order = sorted(clients, key=lambda client: (main[client], client))
    return order, [",".join(map(str, main[client])) for client in order]


def draw_overlap(matrix: Floats, labels: Sequence[str], layer: str) -> Figure:
    """The matrix as an image, with its numbers if they are few. The diagonal does not count for the colours."""
    size = max(3.6, min(8.0, 1.6 + 0.26 * len(matrix)))
    figure, axes = new_figure(height=size + 0.5, width=max(WIDTH, size + 0.4))
    others = matrix[~np.eye(len(matrix), dtype=bool)]
    low, high = float(others.min()), float(others.max())
    image = axes.imshow(matrix, cmap="cividis", vmin=low, vmax=high if high > low else low + 1e-9)
    title = f"intersection over union in {layer}"
    figure.colorbar(image, ax=axes, label=title, location="bottom", shrink=0.8).outline.set_visible(False)
    axes.grid(False)
    if len(matrix) <= MOST_NUMBERS:
        for i, j in np.ndindex(matrix.shape):
            tone = "1" if matrix[i, j] < (low + high) / 2 else "0"
            axes.text(j, i, f"{matrix[i, j]:.2f}", ha="center", va="center", fontsize=6.5, color=tone)
    if len(matrix) <= MOST_NAMES:
        axes.set_xticks(range(len(labels)), labels, rotation=90, fontsize=7)
        axes.set_yticks(range(len(labels)), labels, fontsize=7)
    else:
        axes.set_xticks([])
        axes.set_yticks([])
    axes.set_xlabel("clients, ordered by their main labels")
    return figure
