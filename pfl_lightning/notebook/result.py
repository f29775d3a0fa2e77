"""The result of a training started from Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from typing_extensions import override

from pfl_lightning.export.open_run import OpenRun
from pfl_lightning.foundation.torch_state import quiet_torch
from pfl_lightning.loop import FederatedFabricLoop
from pfl_lightning.metrics.record import RoundRecord
from pfl_lightning.notebook.table import Table


class FitResult:
    """Metrics, the values of each client, and the models of all clients.

    Attributes:
        loop: the run in memory.
        interrupted: whether Ctrl-C ended the run. The result is then that of the last complete round.
        summary: hashes, last and best values, as in summary.json.
        metrics: one row for each round, with the columns of metrics.csv.
        clients: one row for each client, with its results in the last evaluation.
    """

    def __init__(self, loop: FederatedFabricLoop, records: Sequence[RoundRecord], interrupted: bool = False) -> None:
        self.loop, self.interrupted = loop, interrupted
        self.summary: dict[str, Any] = loop.summary()
        self.metrics = Table.of_rounds(records, loop.history.columns())
        self.clients = _client_table(loop, records)
        self._run = OpenRun(loop)

    @property
    def rounds(self) -> int:
        """The number of complete rounds."""
        return self.loop.server.round

    def client(self, client: int | str, *, finetuned: bool = False) -> nn.Module:
        """The personal model of a client.

        Args:
            client: its number, or its name if the data set names its clients.
            finetuned: the copy fine-tuned for `finetune_epochs`, instead of the model before local training.

        Returns:
            A module in evaluation mode, on the CPU. Its inputs are rows of the data set as they are stored, for example
            bytes of images [N, H, W, C].
        """
        with quiet_torch():
            return self._run.predictor(self._run.number_of(client), finetuned)

    def global_model(self) -> nn.Module:
        """The plain global model, for the same inputs as `client`."""
        with quiet_torch():
            self._run.load_global()
            return self._run.live_predictor(plain=True)

    @override
    def __repr__(self) -> str:
        last: dict[str, float] = self.summary["last"]
        metric = f"all_{next(iter(self.loop.task.better))}_before"
        shown = f", {metric} {last[metric]:.4g}" if metric in last else ""
        ended = ", interrupted" if self.interrupted else ""
        name, total = self.summary["algorithm"], self.loop.config.rounds
        return f"FitResult({name} on {self.summary['data']}, {self.rounds} of {total} rounds{ended}{shown})"


def _client_table(loop: FederatedFabricLoop, records: Sequence[RoundRecord]) -> Table:
    """Names, sizes and latest results of all clients."""
    data = loop.data
    table = Table(client=list(range(data.num_clients)))
    if data.client_names:
        table["name"] = list(data.client_names)
    table |= {"train_samples": data.train_sizes.tolist(), "test_samples": data.test_sizes.tolist()}
    table |= {name: totals.tolist() for name, totals in loop.history.client_totals.items()}
    latest = next((record for record in reversed(records) if record.is_evaluation), None)
    if latest is not None:
        table |= {name: v.tolist() for name, v in latest.per_client.items() if name.startswith("all_")}
    return table
