"""The report of a visit, and the table of all reports of a round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch

from pfl_lightning.comm.ranks import Comm
from pfl_lightning.foundation.errors import RunError
from pfl_lightning.model.layout import Layout
from pfl_lightning.tasks.task import Task


@dataclass(frozen=True)
class VisitReport:
    """The facts of one visit."""

    before: Sequence[float]
    """The task's sums for the starting model."""
    after: Sequence[float]
    """The task's sums for the trained model."""
    personal: Sequence[int]
    """Personal entries of each parameter tensor."""
    logged: Sequence[float]
    """The sums of the values that the task logs in training."""
    loss_sum: float
    """The training loss, summed over samples."""
    samples: int
    """Samples trained on, each epoch counted."""
    up_bytes: int
    down_bytes: int
    seconds: float


def gather_reports(
    reports: Mapping[int, VisitReport],
    cohort: Sequence[int],
    task: Task,
    layout: Layout,
    comm: Comm,
    server_fingerprint: Callable[[], int],
) -> np.ndarray:
    """The reports of a round on every rank: a structured array with the fields of `VisitReport`, one row per client.

    The ranks compare the servers that they hold in the same collective.

    Args:
        reports: the reports of the clients that this rank has trained.
        cohort: the clients of the round, in the order of the rows.
        task: its sums and logged values give `before`, `after` and `logged` their widths.
        layout: the number of its parameter tensors is the width of `personal`.
        comm: the ranks.
        server_fingerprint: returns the checksum of this rank's server.

    Raises:
        RunError: the servers differ. It names the round and the ranks.
    """
    sums = len(task.sums)
    widths = {"before": sums, "after": sums, "personal": len(layout.parameter_spans), "logged": task.trained.width}
    rows = np.zeros(len(cohort), [(f.name, np.float64, (widths.get(f.name, 1),)) for f in fields(VisitReport)])
    for row, client in zip(rows, cohort, strict=True):
        for name, value in vars(reports[client]).items() if client in reports else ():
            row[name] = value
    if comm.world > 1:
        table = torch.from_numpy(rows.view(np.float64).reshape(-1)).view(torch.int64)
        fingerprints = torch.zeros(comm.world, dtype=torch.int64)
        fingerprints[comm.rank] = server_fingerprint()
        both = comm.all_sum(torch.cat([table, fingerprints]))
        table.copy_(both[: len(table)])
        _require_equal(both[len(table) :].tolist(), comm.round)
    return rows


def _require_equal(fingerprints: Iterable[int], round_: int) -> None:
    first, *others = fingerprints
    odd = [str(rank) for rank, value in enumerate(others, start=1) if value != first]
    if odd:
        error = RunError(
            f"round {round_}: the server of rank {', '.join(odd)} differs from rank 0's; aggregate must combine "
            f"clients through `uploads` only, and keep nothing on self"
        )
        error.collective = True
        raise error
