"""The pictures of a run's masks, from the file that the run left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pfl_lightning.atomic import replacing
from pfl_lightning.report.mask_record import MaskHistory
from pfl_lightning.report.masks import draw_activation_heat, draw_activation_spread, draw_iou, iou_by_label

FEW = 5


def draw_masks(history: MaskHistory, folder: Path, layer: str, clients: Sequence[int] | None = None) -> list[Path]:
    """Write how alike the masks are in one layer (data and picture), and what was chosen in time (pictures).

    Where fewer than two clients have personal parameters there is nothing to compare.

    Args:
        history: what the run has counted.
        folder: where the files go; those of the same name are replaced.
        layer: a tensor or module, e.g. `net.head`.
        clients: whose choices are shown; by default those visited most.
    """
    matrix, names = iou_by_label(history, layer)
    most = sorted(np.argsort(-history.visits.numpy(), kind="stable")[:FEW].tolist())
    clients = most if clients is None else clients
    figures = {
        "masks_spread.png": draw_activation_spread(history, clients),
        "masks_heat.png": draw_activation_heat(history, clients),
    }
    written = []
    if len(names) > 1:
        figures[f"masks_iou_{layer}.png"] = draw_iou(matrix, names, layer)
        written.append(folder / f"masks_iou_{layer}.csv")
        with replacing(written[0]) as aside:
            np.savetxt(aside, matrix, "%.6f", delimiter=",", header=",".join(f'"{n}"' for n in names), comments="")
    for name, figure in figures.items():
        with replacing(folder / name) as aside:
            figure.savefig(aside, format="png")
    return [*written, *(folder / name for name in figures)]
