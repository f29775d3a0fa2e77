"""The values that a LightningModule logs while one client is tested, as sums."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from pfl_lightning.foundation.errors import ConfigError, RunError
from pfl_lightning.tasks.metric_sums import MetricSums

PREFIX = re.compile(r"^(test|testing|val|valid|validation)[_/\-. ]+(?=.)")
LOWER = ("loss", "error", "mse", "mae", "mape", "perplexity")
"""A metric whose name contains one of these words is better when it is lower."""


class NumberSums:
    """A logged number in the sums of a task: each value counts with the samples of its batch."""

    pooled = True
    higher_is_better: bool | None = None

    def __init__(self, name: str) -> None:
        self.name, self.names = name, [f"{name}.sum", f"{name}.count"]

    def values(self, sums: list[np.ndarray]) -> np.ndarray:
        """The weighted mean of each row."""
        return np.asarray(sums[0] / sums[1])


Entry = NumberSums | MetricSums


class LoggedSums:
    """Receives `self.log` and `self.log_dict` during a test.

    The first test is a trial: it finds out which values are logged, and so which sums the task has. Every later test
    must log the same names.

    Args:
        owner: the class name of the module, for error messages.

    Attributes:
        entries: name to the kind of sums it has, in the order of the first log.
        samples: the number of samples that a logged number counts for.
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.entries: dict[str, Entry] = {}
        self.known = False
        self.samples = 0
        self._full_names: dict[str, str] = {}
        self._numbers: dict[str, Tensor] = {}
        self._metrics: set[str] = set()

    def start(self) -> None:
        """Begin the test of a client."""
        self._numbers, self._metrics = {}, set()

    def add(self, name: str, value: Any, reduce_fx: Any = "mean", batch_size: int | None = None) -> None:
        """Enter a value."""
        if isinstance(value, MetricCollection | Mapping):
            raise ConfigError(f"task: {self.owner} logs several values as {name}; use self.log_dict")
        full, name = name, clean_name(name)
        if self._full_names.setdefault(name, full) != full:
            raise ConfigError(f"task: {self.owner} logs {full} and {self._full_names[name]}; both become {name}")
        if isinstance(value, Metric):
            self._enter(name, value)
            self._metrics.add(name)
            return
        pair = logged_pair(self.owner, name, value, self.samples if batch_size is None else batch_size, reduce_fx)
        self._enter(name, None)
        self._numbers[name] = self._numbers[name] + pair if name in self._numbers else pair

    def _enter(self, name: str, metric: Metric | None) -> None:
        if not self.known and name not in self.entries:
            self.entries[name] = NumberSums(name) if metric is None else MetricSums(name, metric)
        entry = self.entries.get(name)
        if entry is None:
            raise ConfigError(f"task: {self.owner} logs {name} only in some tests; log the same names in every test")
        if isinstance(entry, MetricSums) and entry.metric is not metric:
            raise ConfigError(f"task: {self.owner} logs two different things as {name}; give each its own name")

    def sums(self, device: torch.device) -> Tensor:
        """The sums of the test, float64, for all entries in their order."""
        parts = [torch.zeros(0, dtype=torch.float64)]
        for name, entry in self.entries.items():
            if name not in self._metrics and name not in self._numbers:
                raise RunError(f"task: {self.owner} did not log {name} in a test; log the same names in every test")
            parts.append(entry.read() if isinstance(entry, MetricSums) else self._numbers[name])
        return torch.cat([part.to(device) for part in parts])

    def try_values(self, sums: Tensor) -> None:
        """Compute all metrics once, so that one with several values is refused before the run."""
        with np.errstate(invalid="ignore", divide="ignore"):
            self.values(dict(zip(self.names(), sums[:, None].cpu().numpy(), strict=True)))

    def names(self) -> tuple[str, ...]:
        """The names of all sums."""
        return tuple(name for entry in self.entries.values() for name in entry.names)

    def values(self, sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All metrics, from arrays of sums."""
        return {name: entry.values([sums[n] for n in entry.names]) for name, entry in self.entries.items()}

    def better(self, given: Mapping[str, str]) -> dict[str, str]:
        """Metric to `higher` or `lower`, the main one first. `given` is the user's choice."""
        unknown = [name for name in given if name not in self.entries or given[name] not in ("higher", "lower")]
        if unknown:
            raise ConfigError(
                f"task: {self.owner}.better has {unknown[0]}: {given[unknown[0]]}; use higher or lower for "
                f"{' | '.join(self.entries)}"
            )
        return {**given, **{n: direction(n, e.higher_is_better) for n, e in self.entries.items() if n not in given}}


def logged_pair(owner: str, name: str, value: Any, count: int, reduce_fx: Any) -> Tensor:
    """A logged number times the samples it counts for, and that count, float64 [2]."""
    if reduce_fx not in ("mean", torch.mean):
        raise ConfigError(f"task: {owner} logs {name} with reduce_fx={reduce_fx!r}; only mean is supported")
    try:
        number = torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError(f"task: {owner} logs {type(value).__name__} as {name}; log a number or a metric") from None
    if number.numel() != 1:
        raise ConfigError(f"task: {owner} logs {number.numel()} values as {name}; log one number")
    return torch.stack([number.reshape(()).double() * count, number.new_full((), count, dtype=torch.float64)])


def clean_name(name: str) -> str:
    """The name of a metric without the phase: `test_acc`, `test/acc` and `val_acc` become `acc`."""
    return PREFIX.sub("", name)


def direction(name: str, higher_is_better: bool | None) -> str:
    """Whether a metric is better when it is `higher` or `lower`."""
    if higher_is_better is None:
        higher_is_better = not any(word in name.lower() for word in LOWER)
    return "higher" if higher_is_better else "lower"
