"""The values that a LightningModule logs while one client trains, as sums."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from pfl_lightning.tasks.logged_sums import Entry, NumberSums, logged_pair
from pfl_lightning.tasks.metric_sums import MetricSums

PREFIX = re.compile(r"^(train|training)[_/\-. ]+(?=.)")
LOSS = "train_loss"
"""The loop has this column itself: the loss that `training_step` returns."""


class TrainingLog:
    """Receives `self.log` and `self.log_dict` during the local training of a client.

    The trial before the first round finds the logged names. Later trainings may leave names out, and names that the
    trial has not seen are dropped. All epochs of a visit count.

    Args:
        owner: the class name of the module, for error messages.

    Attributes:
        entries: column to the kind of sums it has, in the order of the first log.
        known: whether the trial is over.
        batch_samples, epoch_samples: the samples of the present batch, and of the epoch so far.
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.entries: dict[str, Entry] = {}
        self.known = False
        self.batch_samples = self.epoch_samples = 0
        self._full_names: dict[str, str] = {}
        self._sums: dict[str, Tensor] = {}
        self._metrics: set[str] = set()

    def switch_off(self) -> None:
        """Drop all values from now on, because a training step does not see the whole batch of one client."""
        self.entries, self.known = {}, True

    def start(self) -> None:
        """Begin the visit of a client."""
        self._sums, self._metrics = {}, set()
        self.batch_samples = self.epoch_samples = 0

    def see(self, samples: int) -> None:
        """Begin a batch."""
        self.batch_samples = samples
        self.epoch_samples += samples

    def add(self, name: str, value: Any, samples: int, reduce_fx: Any = "mean") -> None:
        """Enter a value that counts for so many samples."""
        column = f"train_{PREFIX.sub('', name)}"
        if column == LOSS or self._full_names.setdefault(column, name) != name:
            return
        is_metric = isinstance(value, Metric)
        if not self.known and column not in self.entries:
            self.entries[column] = MetricSums(column, value) if is_metric else NumberSums(column)
        entry = self.entries.get(column)
        if isinstance(entry, MetricSums):
            if entry.metric is value:
                self._metrics.add(column)
        elif entry is not None and not is_metric:
            self._count(column, logged_pair(self.owner, name, value, samples, reduce_fx))

    def end_epoch(self) -> None:
        """Count the metrics of the epoch. They are reset afterwards."""
        for column in sorted(self._metrics):
            entry = self.entries[column]
            assert isinstance(entry, MetricSums), "only metrics are entered here"
            self._count(column, entry.read())
        self._metrics, self.epoch_samples = set(), 0

    def _count(self, column: str, sums: Tensor) -> None:
        self._sums[column] = self._sums[column] + sums if column in self._sums else sums

    def sums(self, device: torch.device) -> Tensor:
        """The sums of the visit, float64, for all entries in their order. Zeros: not logged."""
        if not self.entries:
            return torch.empty(0, dtype=torch.float64, device=device)
        parts: list[Tensor] = []
        for column, entry in self.entries.items():
            zeros = torch.zeros(len(entry.names), dtype=torch.float64)
            parts.append(self._sums.get(column, zeros).to(device))
        return torch.cat(parts)

    @property
    def width(self) -> int:
        """The number of sums."""
        return sum(len(entry.names) for entry in self.entries.values())

    def values(self, sums: Sequence[float]) -> dict[str, float]:
        """The value of each column over all clients of a round. A column that nobody has logged is left out."""
        rest, found = list(sums), {}
        for column, entry in self.entries.items():
            own, rest = rest[: len(entry.names)], rest[len(entry.names) :]
            if any(own):
                with np.errstate(invalid="ignore", divide="ignore"):
                    found[column] = float(entry.values([np.array([number]) for number in own])[0])
        return {column: value for column, value in found.items() if not math.isnan(value)}
