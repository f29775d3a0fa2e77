"""Tables about clients and layers: client_facts.csv at the start, clients.csv and personal.csv as the run goes on."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from typing_extensions import override

from pfl_lightning.callback import Callback
from pfl_lightning.data.federated import FederatedData
from pfl_lightning.foundation.atomic_files import write_text
from pfl_lightning.foundation.errors import RunError
from pfl_lightning.metrics.history import CLIENT_TOTALS
from pfl_lightning.metrics.record import RoundRecord
from pfl_lightning.monitor.round_table import RoundTable, Row, csv_text

if TYPE_CHECKING:
    from pfl_lightning.loop import FederatedFabricLoop

FACTS, CLIENTS, PERSONAL = "client_facts.csv", "clients.csv", "personal.csv"
MOST_CLIENTS = 10_000
"""With more clients, clients.csv holds the last evaluation only."""


class ClientTables(Callback):
    """Writes the tables of one run, on rank 0.

    client_facts.csv: sizes and labels of each client. clients.csv: the results of each client at every evaluation.
    personal.csv: how many entries of each tensor are personal, in every round that has any.

    A resumed run drops the rows of later rounds, because these rounds are trained again.

    Args:
        run_dir: the tables go there.
        loop: the run.
    """

    def __init__(self, run_dir: Path, loop: FederatedFabricLoop) -> None:
        self.run_dir, self.loop = run_dir, loop
        self._clients, self._personal = RoundTable(run_dir / CLIENTS), RoundTable(run_dir / PERSONAL)
        self._tables = (self._clients, self._personal)

    @override
    def on_fit_start(self, round_: int) -> None:
        """Write client_facts.csv, and drop repeated rounds from the other tables."""
        self.loop.comm.run_on_rank_zero(lambda: self._start(round_))

    @override
    def on_evaluation_end(self, record: RoundRecord) -> None:
        """Add the results of all clients."""
        table = evaluation_table(record, self.loop.history.client_totals)
        many = self.loop.data.num_clients > MOST_CLIENTS
        write = self._clients.replace if many else self._clients.append
        self.loop.comm.run_on_rank_zero(lambda: write(table[0], table[1:]))

    @override
    def on_round_end(self, record: RoundRecord) -> None:
        """Add the personal entries of each tensor."""
        if any(record.layer_share.values()):
            sizes = {span.name: span.stop - span.start for span in self.loop.server.layout.parameter_spans}
            header, *rows = personal_table(record, sizes)
            self.loop.comm.run_on_rank_zero(lambda: self._personal.append(header, rows))

    @override
    def state_dict(self) -> dict[str, Tensor]:
        """Flush the tables to disk, and describe them for the checkpoint. They are too large to be copied into it."""
        if self.loop.comm.rank > 0:
            return {}
        for table in self._tables:
            table.flush()
        # a table replaced at every evaluation may be newer than the checkpoint
        growing = self._tables if self.loop.data.num_clients <= MOST_CLIENTS else (self._personal,)
        return {table.path.name: table.identity() for table in growing}

    @override
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Warn about tables that were damaged since the checkpoint."""
        for table in self._tables if self.loop.comm.rank == 0 else ():
            if table.path.name in state and table.has_changed_since(state[table.path.name]):
                lost = "rows of earlier rounds are missing or wrong in it, but in no other file"
                print(f"pfl-fit: warning: {table.path} was damaged; {lost}", file=sys.stderr, flush=True)

    def _start(self, last_round: int) -> None:
        path = self.run_dir / FACTS
        try:
            write_text(path, csv_text(facts_table(self.loop.data)))
        except OSError as error:
            raise RunError(f"cannot write {path}: {error.strerror or error}") from error
        for table in self._tables:
            table.cut(last_round)


def facts_table(data: FederatedData) -> list[Row]:
    """The facts of each client: sizes, and training samples of each class."""
    columns: dict[str, Iterable[Any]] = {"client": range(data.num_clients)}
    if data.client_names:
        columns["name"] = data.client_names
    columns |= {
        "train_samples": data.train_sizes.tolist(),
        "validation_samples": data.validation_sizes.tolist(),
        "test_samples": data.test_sizes.tolist(),
        "held_out": np.isin(np.arange(data.num_clients), data.held_out.numpy()).astype(int).tolist(),
    }
    if data.kind == "classes":
        for label, counts in zip(class_names(data), data.label_counts().T.tolist(), strict=True):
            columns[f"label_{label}"] = counts
    return [list(columns), *([str(cell) for cell in row] for row in zip(*columns.values(), strict=True))]


def class_names(data: FederatedData) -> Sequence[str]:
    """The names of the classes, or their numbers if they have no names."""
    return getattr(data, "class_names", ()) or [str(label) for label in range(data.spec.num_classes)]


def evaluation_table(record: RoundRecord, totals: dict[str, Any]) -> list[Row]:
    """The results of an evaluation, one row per client. A cell is empty if the client was not tested."""
    values = {name: column for name, column in record.per_client.items() if name.startswith(("all_", "held_out_"))}
    columns = [*(column.tolist() for column in values.values()), *(totals[name].tolist() for name in CLIENT_TOTALS)]
    cells = enumerate(zip(*columns, strict=True))
    rows = [[str(record.round), str(client), *map(_cell, row)] for client, row in cells]
    return [["round", "client", *values, *CLIENT_TOTALS], *rows]


def personal_table(record: RoundRecord, sizes: dict[str, int]) -> list[Row]:
    """One row per tensor: its size, and its personal entries as a mean over the participants of the round."""
    shares = record.layer_share.items()
    rows = [[str(record.round), name, str(sizes[name]), _cell(share * sizes[name])] for name, share in shares]
    return [["round", "tensor", "size", "personal"], *rows]


def _cell(value: float) -> str:
    return "" if math.isnan(value) else repr(value)
