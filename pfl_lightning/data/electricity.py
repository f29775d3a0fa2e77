"""Electricity load: each client is one meter or zone and forecasts its own series."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from pfl_lightning.data.federated import DataSpec, FederatedData, Samples
from pfl_lightning.data.generated_load import generate_load
from pfl_lightning.data.partitions.partition import Parts
from pfl_lightning.data.series import Series, most_distinct, read_series
from pfl_lightning.foundation.errors import ConfigError, require

ECL = "LD2011_2014.txt"
ECL_RECORDS = 105_216  # quarters of an hour in 2012-2014: many meters were installed during 2011
GENERATED_CLIENTS, GENERATED_HOURS = 12, 8760


class ElectricityLoad(FederatedData):
    """Windows of electricity load. The target of a window is the value that follows it.

    The series come from `source` if it is set. Otherwise they are the Electricity Consuming Load set (2012 to 2014,
    meters that ran all the time) if its file LD2011_2014.txt is in `root`. Otherwise they are generated, and the data
    set is called ElectricityLoad_generated wherever its name is shown. Each series is scaled so that its training part
    lies in [0, 1].

    Args:
        source: CSV file, or folder of CSV files such as AEP_hourly.csv with the columns Datetime and AEP_MW. The first
            column is the time, every other column is one client. A folder of such files gives one client per file.
        series: names of the series to use, such as [AEP_MW, DOM_MW] or [MT_001, MT_158]. null uses all of them.
        num_clients: number of series to choose. null takes all of them.
        choice: rule that chooses them. "random" draws with the seed. "distinct" takes those farthest apart
            (Learn2pFed's Setting 1 with num_clients 5): the two with the largest Euclidean distance between their
            scaled training parts, then always the one farthest from its nearest neighbour among those already chosen.
            The paper looked at a t-SNE picture instead, and a picture cannot be repeated.
        window: number of values before the one to predict.
        test_share: fraction of each series to test on, taken from its end.
        records: number of values to keep of each series, the latest ones. null keeps all of them.
        root: directory of the data sets. null takes the environment variable PFL_DATA, or "data".
        seed: seed for choosing or generating the series. null takes the seed of the run.
        validation_share: fraction of each client's training windows kept for validation, drawn at random.
        held_out_clients: fraction of the clients that never take part in training.
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
        series: list[str] | None = None,
        choice: Literal["random", "distinct"] = "random",
        validation_share: float = 0.0,
        held_out_clients: float = 0.0,
    ) -> None:
        super().__init__(1 if num_clients is None else num_clients, seed, validation_share, held_out_clients)
        require(window >= 1, "window", window, "1 or more")
        require(0 < test_share < 1, "test_share", test_share, "a number between 0 and 1")
        require(records is None or records > window + 1, "records", records, f"more than {window + 1}, or null")
        require(choice in ("random", "distinct"), "choice", choice, "random or distinct")
        require(series is None or len(set(series)) == len(series) > 0, "series", series, "different names, or null")
        self.window, self.test_share, self.records, self.wanted = window, test_share, records, num_clients
        self.series, self.choice = series, choice
        self.spec = DataSpec((window,), 1)
        ecl = Path(root or os.environ.get("PFL_DATA") or "data").expanduser() / ECL
        self.source = Path(source).expanduser() if source else ecl if ecl.is_file() else None

    @property
    @override
    def name(self) -> str:
        return f"ElectricityLoad_{self.source.stem if self.source else 'generated'}"

    @override
    def setup(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed if self.seed is None else self.seed)
        super().setup(seed)

    @override
    def load(self) -> Samples:
        chosen = self._choose(self._long_enough(self._read()))
        self.client_names = tuple(chosen)
        self.num_clients = len(chosen)
        self._lengths = np.array([len(values) for values in chosen.values()], dtype=np.int64)
        values = torch.from_numpy(np.concatenate(list(chosen.values()))).float()
        # windows overlap in memory, and no client gets a window that reaches from one series into the next
        return Samples(values.unfold(0, self.window, 1)[:-1], values[self.window :, None], 0)

    @override
    def draw(self, samples: Samples, rng: np.random.Generator) -> Parts:
        sizes = self._lengths - self.window
        starts = np.cumsum(self._lengths) - self._lengths
        indices = np.concatenate([start + np.arange(size) for start, size in zip(starts, sizes, strict=True)])
        train = self._train_length(self._lengths) - self.window
        return Parts(indices, train, sizes - train)

    def _read(self) -> Series:
        """Return the series by name, or only those that `series` names."""
        if self.source is None:
            found = generate_load(self.wanted or GENERATED_CLIENTS, GENERATED_HOURS, self._rng)
        else:
            found = read_series(self.source)
        if self.source is not None and self.source.name == ECL:
            found = {name: values[-ECL_RECORDS:] for name, values in found.items()}
            found = {name: values for name, values in found.items() if values[: 4 * 24].any()}
        for name in self.series or ():
            if name not in found:
                near = difflib.get_close_matches(name, found, 3, 0.0)
                raise ConfigError(f"data.series: no series is called {name}; names are like {', '.join(near)}")
        return found if self.series is None else {name: found[name] for name in self.series}

    def _long_enough(self, series: Series) -> Series:
        """Keep the latest `records` values, or raise a `ConfigError` that names a series with too few."""
        series = {name: values[-self.records :] if self.records else values for name, values in series.items()}
        for name, values in series.items():
            if self._train_length(len(values)) <= self.window or len(values) <= self._train_length(len(values)):
                raise ConfigError(
                    f"data.source: series {name} has {len(values)} values, too few for window {self.window}"
                )
        return series

    def _choose(self, series: Series) -> Series:
        """Return `num_clients` of the series, scaled and in the order of the file."""
        wanted = len(series) if self.wanted is None else self.wanted
        require(wanted <= len(series), "num_clients", wanted, f"at most {len(series)}, the number of series")
        if self.choice == "random":
            chosen = np.sort(self._rng.choice(len(series), wanted, replace=False)).tolist()
        else:
            trained = [self._scale(values)[: self._train_length(len(values))] for values in series.values()]
            chosen = most_distinct(trained, wanted)
        names = list(series)
        return {names[position]: self._scale(series[names[position]]) for position in chosen}

    def _scale(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        trained = values[: self._train_length(len(values))]
        low, high = float(trained.min()), float(trained.max())
        return (values - low) / (high - low or 1.0)

    def _train_length(self, length: int | NDArray[np.int64]) -> NDArray[np.int64]:
        """Number of values in the training part. All windows with a later target are test samples."""
        return np.rint((1 - self.test_share) * np.asarray(length)).astype(np.int64)
