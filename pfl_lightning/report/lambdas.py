"""What Learn2pFed has learned: how much each client holds each parameter to the global model (its Fig. 3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pfl_lightning.atomic import replacing
from pfl_lightning.errors import RunError

if TYPE_CHECKING:
    from pfl_lightning.loop import FederatedFabricLoop

Floats = NDArray[np.float64]
MOST_NUMBERS = 20


def learned_lambdas(loop: FederatedFabricLoop) -> Floats:
    """Each client's Λ, negative values counted as 0, NaN for clients never visited. Every rank must ask. # [clients, d]

    Cells with their own Λ are averaged, but for the last: its Λ comes after the model that is tested, so that no
    gradient ever reaches it.
    """
    size = len(loop.server.memory["head"])
    table = torch.zeros(loop.data.num_clients, size, dtype=torch.float64)
    for client, state in loop.store.states.items():
        cells = torch.relu(state["Lambda"])
        table[client] = (cells[:-1] if len(cells) > 1 else cells).mean(0)
    loop.comm.merge_rows(table)
    table[torch.tensor(loop.store.home) == -1] = torch.nan
    return table.numpy()


class LambdaRecorder:
    """A hook for the loop's `on_round_end` that writes the learned Λ after the last round.

    Args:
        folder: gets lambdas.csv, a row per client, and lambdas.png.
        private: the places of the parameters that are known to be each client's own, to be marked in the picture.
    """

    def __init__(self, folder: Path, private: Sequence[int] = ()) -> None:
        self.folder, self.private = folder, private

    def __call__(self, loop: FederatedFabricLoop) -> None:
        """Write the files once the run is over."""
        if loop.server.round < loop.config.rounds:
            return
        table = learned_lambdas(loop)
        loop.comm.on_first(lambda: self._write(table))

    def _write(self, table: Floats) -> None:
        try:
            with replacing(self.folder / "lambdas.csv") as aside:
                save_lambdas(table, aside)
            with replacing(self.folder / "lambdas.png") as aside:
                draw_lambdas(table, self.private).savefig(aside, format="png")
        except OSError as error:
            raise RunError(f"report.lambdas: cannot write to {self.folder}: {error}") from error


def save_lambdas(table: Floats, path: Path) -> None:
    """Write a line per client: its number, then its Λ."""
    names = ",".join(["client", *(f"lambda_{place}" for place in range(table.shape[1]))])
    rows = np.column_stack([np.arange(len(table)), table])
    formats = ["%d", *["%.9g"] * table.shape[1]]
    np.savetxt(path, rows, formats, delimiter=",", header=names, comments="")


def draw_lambdas(table: Floats, private: Sequence[int] = ()) -> Figure:
    """Λ as an image, a row per client, a column per parameter; parameters known to be private are named so."""
    clients, size = table.shape
    few = size <= MOST_NUMBERS and clients <= MOST_NUMBERS
    width = min(12.0, 2.5 + (0.75 if few else 0.02) * size)
    figure = Figure(figsize=(width, min(9.0, 1.8 + 0.3 * clients)), dpi=110, layout="constrained")
    axes: Axes = figure.add_subplot()
    shown = table[np.isfinite(table)]
    high = max(float(shown.max()) if len(shown) else 0.0, 1e-9)
    image = axes.imshow(table, aspect="auto", cmap="Blues", vmin=0.0, vmax=high, interpolation="nearest")
    figure.colorbar(image, ax=axes, label="Λ: 0 is the client's own").outline.set_visible(False)
    if few:
        for i, j in np.argwhere(np.isfinite(table)):
            color = "1" if table[i, j] > 0.6 * high else "0"
            axes.text(j, i, f"{table[i, j]:.2f}", ha="center", va="center", fontsize=8, color=color)
        axes.set_xticks(range(size), [f"{j}\nprivate" if j in private else f"{j}" for j in range(size)])
        axes.set_yticks(range(clients))
    axes.set_xlabel("parameter of the last layer")
    axes.set_ylabel("client")
    axes.set_title("How much each client holds its parameters to the global ones", loc="left", fontsize=11)
    return figure
