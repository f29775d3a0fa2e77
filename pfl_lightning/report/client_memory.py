"""A tensor that every client keeps, as a table and a picture. Learn2pFed's Fig. 3 shows Λ in this way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from pfl_lightning.foundation.state import State
from pfl_lightning.model.client import MEMORY
from pfl_lightning.report.style import WIDTH, new_figure

Floats = NDArray[np.float64]
LAMBDA = "Lambda"
MOST_NUMBERS = 20
"""Up to this many rows and columns have their values written in."""


def memory_table(states: Iterable[tuple[int, State]], name: str, num_clients: int) -> Floats | None:
    """The tensor `name` of every client's memory, flat. # [clients, n]

    Clients without a state have NaN. None if no client has this tensor, or if its size differs between clients.
    """
    rows: dict[int, Floats] = {}
    for client, state in states:
        if (tensor := state.get(MEMORY + name)) is not None:
            values = strength(tensor) if name == LAMBDA else tensor.double().flatten()
            rows[client] = values.numpy()
    if len({len(row) for row in rows.values()}) != 1:
        return None
    table = np.full((num_clients, len(next(iter(rows.values())))), np.nan)
    for client, row in rows.items():
        table[client] = row
    return table


def strength(cells: Tensor) -> Tensor:
    """Λ of a client: how much each parameter is held to the global model. # [cells, d] to [d]

    Negative values count as 0. Cells with their own Λ are averaged, except for the last one: its Λ comes after the
    model that is tested, so no gradient ever reaches it.
    """
    positive = torch.relu(cells.double())
    return (positive[:-1] if len(positive) > 1 else positive).mean(0)


def draw_memory(table: Floats, name: str, private: Sequence[int] = ()) -> Figure:
    """The table as an image: one row per client, one column per parameter.

    Args:
        table: from `memory_table`.
        name: of the tensor.
        private: columns known to be each client's own. The picture marks them.
    """
    clients, size = table.shape
    few = size <= MOST_NUMBERS and clients <= MOST_NUMBERS
    figure, axes = new_figure(
        height=min(7.0, 1.5 + 0.28 * clients), width=max(WIDTH, min(9.0, 1.8 + 0.42 * size * few))
    )
    known = table[np.isfinite(table)]
    low, high = (min(0.0, known.min()), max(known.max(), 1e-9)) if len(known) else (0.0, 1.0)
    image = axes.imshow(table, aspect="auto", cmap="Blues", vmin=low, vmax=high, interpolation="nearest")
    axes.grid(False)
    meaning = "Λ (0: the client's own)" if name == LAMBDA else name
    figure.colorbar(image, ax=axes, label=meaning).outline.set_visible(False)
    if few:
        for i, j in np.argwhere(np.isfinite(table)):
            color = "1" if table[i, j] > low + 0.6 * (high - low) else "0"
            axes.text(j, i, f"{table[i, j]:.2f}", ha="center", va="center", fontsize=7, color=color)
        axes.set_xticks(range(size), [f"{j}\nprivate" if j in private else f"{j}" for j in range(size)])
        axes.set_yticks(range(clients))
    axes.set_xlabel("parameter of the last layer" if name == LAMBDA else "entry")
    axes.set_ylabel("client")
    return figure
