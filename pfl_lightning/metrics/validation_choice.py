"""The test results at the round that validation chose, for the run and for each client.

Papers report a maximum over test results, which nobody could have chosen without the test data. The value at the round
with the best validation result is an honest alternative.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from pfl_lightning.metrics.keys import MetricKey
from pfl_lightning.metrics.summaries import Values


class ValidationChoice:
    """Follows the evaluations of a run.

    Args:
        metric: the task's main metric, which validation goes by.
        better: whether `higher` or `lower` is better.
        num_clients: the number of clients.
    """

    def __init__(self, metric: str, better: str, num_clients: int) -> None:
        self.metric, self.sign = metric, 1.0 if better == "higher" else -1.0
        self.round, self.score = 0, -math.inf
        self.columns: dict[str, float] = {}
        """The columns of the chosen evaluation."""
        self.client_score = np.full(num_clients, -np.inf)
        self.client_value = np.full(num_clients, np.nan)
        """Per client the test value before training, at the round that its own validation samples chose."""

    def enter(
        self,
        round_: int,
        columns: Mapping[MetricKey, float],
        names: Mapping[MetricKey, str],
        values: Mapping[str, Values],
    ) -> None:
        """Enter an evaluation. The first of several equal scores is kept.

        Args:
            round_: its round.
            columns: its averages.
            names: the column of each key.
            values: the values of each client, under `before` and `validation`.
        """
        score = self.sign * columns.get(MetricKey(self.metric, "validation", "all"), math.nan)
        if score > self.score:
            self.round, self.score = round_, score
            self.columns = {names[key]: value for key, value in columns.items()}
        of_clients = self.sign * values["validation"][self.metric]
        with np.errstate(invalid="ignore"):
            improved = of_clients > self.client_score
        self.client_score[improved] = of_clients[improved]
        self.client_value[improved] = values["before"][self.metric][improved]

    def summary(self, clients: np.ndarray) -> dict[str, float]:
        """For summary.json: the chosen round, its columns, and the mean over clients that chose for themselves.

        Args:
            clients: bool, the clients with validation and test samples. One whose results were never finite counts:
                the mean is then NaN.
        """
        if not self.round:
            return {}
        values = self.client_value[clients]
        each = {f"{self.metric}_before_per_client": float(values.mean())} if len(values) else {}
        return {"round": self.round, **self.columns, **each}
