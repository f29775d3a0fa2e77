"""Electricity load: each client is one meter or zone and forecasts its own series."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from pfl_lightning.data.federated import DataSpec, FederatedData, Samples
from pfl_lightning.data.partitions.partition import Parts
from pfl_lightning.data.series import Series, read_series
from pfl_lightning.errors import ConfigError, require

ECL = "LD2011_2014.txt"
ECL_RECORDS = 105_216  # quarters of an hour in 2012-2014: many meters were installed during 2011
GENERATED_CLIENTS, GENERATED_HOURS = 12, 8760


class Load(FederatedData):
    """Windows of series; the number to predict is the one after the window.

    The series are, in this order: those of `source`; the Electricity Consuming Load set if its file LD2011_2014.txt is
    in `root` (2012 to 2014, meters that were running all the time); otherwise generated ones, in which case the data
    set is called Load_generated wherever its name is shown. Each is scaled so that its training part lies in [0, 1].

    Args:
        source: a CSV file, or a folder of them: the first column is the time, every other one is a client.
        num_clients: so many of the series, chosen at random; all of them by default.
        window: how many values are seen before the one that is predicted.
        test_share: the last part of each series, to test on.
        records: only the last so many values of each series; all by default.
        root: directory of the data sets; by default the environment variable PFL_DATA, else "data".
        seed: for the choice (or the making) of the series alone; by default the run's.
    """

    def __init__(
        self,
        source: str | Path | None = None,
        num_clients: int | None = None,
        window: int = 3,
        test_share: float = 0.1,
        records: int | None = None,
        root: str | Path | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(1 if num_clients is None else num_clients, seed)
        require(window >= 1, "window", window, "1 or more")
        require(0 < test_share < 1, "test_share", test_share, "a number between 0 and 1")
        require(records is None or records > window + 1, "records", records, f"more than {window + 1}, or null")
        self.window, self.test_share, self.records, self.wanted = window, test_share, records, num_clients
        self.spec = DataSpec((window,), 1)
        ecl = Path(root or os.environ.get("PFL_DATA") or "data").expanduser() / ECL
        self.source = Path(source).expanduser() if source else ecl if ecl.is_file() else None

    @property
    @override
    def name(self) -> str:
        return f"Load_{self.source.stem if self.source else 'generated'}"

    @override
    def setup(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed if self.seed is None else self.seed)
        super().setup(seed)

    @override
    def load(self) -> Samples:
        series = list(self._choose(self._read()).values())
        self.num_clients, self._lengths = len(series), np.array([len(one) for one in series], dtype=np.int64)
        flat = np.concatenate([self._scale(one) for one in series])
        values = torch.from_numpy(flat).float()
        # windows overlap in memory; those that reach from one series into the next are dealt to nobody
        return Samples(values.unfold(0, self.window, 1)[:-1], values[self.window :, None], 0)

    @override
    def draw(self, samples: Samples, rng: np.random.Generator) -> Parts:
        sizes = self._lengths - self.window
        starts = np.cumsum(self._lengths) - self._lengths
        indices = np.concatenate([start + np.arange(size) for start, size in zip(starts, sizes, strict=True)])
        train = self._train_length(self._lengths) - self.window
        return Parts(indices, train, sizes - train)

    def _read(self) -> Series:
        if self.source is None:
            return generate(self.wanted or GENERATED_CLIENTS, GENERATED_HOURS, self._rng)
        series = read_series(self.source)
        if self.source.name == ECL:
            series = {name: values[-ECL_RECORDS:] for name, values in series.items()}
            series = {name: values for name, values in series.items() if values[: 4 * 24].any()}
        return series

    def _choose(self, series: Series) -> Series:
        series = {name: values[-self.records :] if self.records else values for name, values in series.items()}
        for name, values in series.items():
            if self._train_length(len(values)) <= self.window or len(values) <= self._train_length(len(values)):
                raise ConfigError(
                    f"data.source: series {name} has {len(values)} values, too few for window {self.window}"
                )
        wanted = len(series) if self.wanted is None else self.wanted
        require(wanted <= len(series), "num_clients", wanted, f"at most {len(series)}, the number of series")
        chosen = np.sort(self._rng.choice(len(series), wanted, replace=False))
        return {name: series[name] for name in np.array(list(series))[chosen].tolist()}

    def _scale(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        seen = values[: self._train_length(len(values))]
        low, high = float(seen.min()), float(seen.max())
        return (values - low) / (high - low or 1.0)

    def _train_length(self, length: int | NDArray[np.int64]) -> NDArray[np.int64]:
        """Values of the training part; the targets of all later windows are tested."""
        return np.rint((1 - self.test_share) * np.asarray(length)).astype(np.int64)


def generate(count: int, hours: int, rng: np.random.Generator) -> Series:
    """Hourly series with the look of electricity load: days, weeks and seasons, each client's own, and slow noise."""
    hour = np.arange(hours)
    series: Series = {}
    for client in range(count):
        day, week, year = rng.uniform([0.2, 0.05, 0.1], [0.5, 0.25, 0.4])
        phase = rng.normal(0, 1.5)
        daily = np.cos(2 * np.pi * (hour - 18 - phase) / 24) + 0.4 * np.cos(4 * np.pi * (hour - 9 - phase) / 24)
        weekend = (hour // 24) % 7 >= 5
        season = np.cos(2 * np.pi * hour / 8766 + rng.uniform(0, 2 * np.pi))
        keep, noise = rng.uniform(0.7, 0.95), rng.normal(0, 0.05, hours)
        for now in range(1, hours):
            noise[now] += keep * noise[now - 1]
        level = np.exp(rng.normal(0, 1))
        series[f"load {client}"] = level * (2 + day * daily - week * weekend + year * season + noise)
    return series
