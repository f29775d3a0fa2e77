"""The report of a visit, and the table of all reports of a round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch

from pfl_lightning.comm.collectives import Comm
from pfl_lightning.foundation.errors import RunError


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


class Reports:
    """The reports of the clients of a round, one row each.

    Args:
        cohort: the clients of the round.
        num_sums: number of the task's sums.
        num_tensors: number of parameter tensors.
        num_logged: number of the sums that the task logs in training.

    Attributes:
        rows: a structured array with the fields of `VisitReport`, one row per client of the cohort.
    """

    def __init__(self, cohort: Sequence[int], num_sums: int, num_tensors: int, num_logged: int = 0) -> None:
        widths = {"before": num_sums, "after": num_sums, "personal": num_tensors, "logged": num_logged}
        row = np.dtype([(f.name, np.float64, (widths.get(f.name, 1),)) for f in fields(VisitReport)])
        self.rows = np.zeros(len(cohort), dtype=row)
        self._row_of = {client: index for index, client in enumerate(cohort)}

    def add(self, client: int, report: VisitReport) -> None:
        """Enter the report of a client that this rank has trained."""
        row = self.rows[self._row_of[client]]
        for name, value in vars(report).items():
            row[name] = value

    def merge(self, comm: Comm, server_fingerprint: Callable[[], int]) -> None:
        """Complete the table on every rank, and compare the servers that the ranks hold in the same collective.

        Raises:
            RunError: the servers differ. It names the round and the ranks.
        """
        if comm.world == 1:
            return
        table = torch.from_numpy(self.rows.view(np.float64).reshape(-1)).view(torch.int64)
        fingerprints = torch.zeros(comm.world, dtype=torch.int64)
        fingerprints[comm.rank] = server_fingerprint()
        both = comm.all_sum(torch.cat([table, fingerprints]))
        table.copy_(both[: len(table)])
        _require_equal(both[len(table) :].tolist(), comm.round)


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
