"""Numbers that a run leaves in its directory."""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from pfl_lightning.checkpoint.manifest import Manifest, list_rounds, manifest_path
from pfl_lightning.checkpoint.marker import read_marker
from pfl_lightning.checkpoint.sealed import Unusable
from pfl_lightning.foundation.own_sources import source_digest

Values = NDArray[np.float64]


class Unreadable(Exception):
    """A run whose results cannot be used. The message says why."""


@dataclass(frozen=True)
class RunFacts:
    """The records of a finished run."""

    summary: Mapping[str, Any]
    rounds: Sequence[Mapping[str, float]]
    """The rows of metrics.csv, without empty fields. NaN: a tested client was not finite."""
    clients: Mapping[str, Mapping[int, Values]] = field(default_factory=dict)
    """Metric column → round → value of each client, NaN where it was not tested. Empty without clients.csv."""
    partition_sha256: str | None = None
    train_sizes: Values | None = None
    """Training samples of each client. None without client_facts.csv."""
    samples: str | None = None
    """Fingerprint of the samples that a checkpoint was made with. None without a checkpoint."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The user's own classes, the file of initial weights, and the digests of their files when the run was started."""

    @property
    def last_round(self) -> int:
        """Number of the last round."""
        return int(self.rounds[-1]["round"]) if self.rounds else 0

    @property
    def changed_sources(self) -> list[str]:
        """Own classes and files whose content has changed since."""
        return [name for name, digest in self.sources.items() if source_digest(name) not in (None, digest)]

    def at(self, round_: int, column: str) -> float:
        """A column at a round. NaN where there is none."""
        row = next((row for row in self.rounds if row["round"] == round_), {})
        return row.get(column, math.nan)

    def total(self, round_: int, column: str) -> float:
        """The sum of a column until the end of a round. NaN where a row has no value."""
        return math.fsum(row.get(column, math.nan) for row in self.rounds if row["round"] <= round_)

    def series(self, column: str) -> list[tuple[int, float]]:
        """(round, value) wherever the column has a value."""
        found = [(int(row["round"]), row.get(column, math.nan)) for row in self.rounds]
        return [(round_, value) for round_, value in found if not math.isnan(value)]

    def higher_is_better(self, column: str) -> bool | None:
        """The direction that the run took: its best value is its largest or its smallest. None if that says nothing."""
        best, values = self.summary.get("best", {}).get(column), [value for _, value in self.series(column)]
        return None if best is None or not values or min(values) == max(values) else bool(best == max(values))


def read_facts(run_dir: Path) -> RunFacts:
    """Read the summary, the tables and the partition of a run. Raises `Unreadable`."""
    summary, rounds, clients = read_summary(run_dir), read_rounds(run_dir), _read_clients(run_dir)
    return RunFacts(
        summary, rounds, clients, _partition(run_dir), _train_sizes(run_dir), _samples(run_dir), _sources(run_dir)
    )


def read_summary(run_dir: Path) -> dict[str, Any]:
    """The content of summary.json. Raises `Unreadable`."""
    try:
        summary = json.loads((run_dir / "summary.json").read_text())
    except FileNotFoundError:
        raise Unreadable("it has no summary.json") from None
    except (OSError, ValueError) as error:
        raise Unreadable("its summary.json cannot be read") from error
    if not isinstance(summary, dict):
        raise Unreadable("its summary.json holds no keys and values")
    return summary


def read_rounds(run_dir: Path) -> list[dict[str, float]]:
    """The rows of metrics.csv. Raises `Unreadable`."""
    try:
        with (run_dir / "metrics.csv").open(newline="") as file:
            rows = [{name: float(text) for name, text in row.items() if text} for row in csv.DictReader(file)]
    except (OSError, ValueError, TypeError, csv.Error) as error:  # a row too long has a list in it
        raise Unreadable("its metrics.csv cannot be read") from error
    if any(math.isnan(row.get("round", math.nan)) for row in rows):
        raise Unreadable("its metrics.csv has a row without a round")
    return rows


def _read_clients(run_dir: Path) -> dict[str, dict[int, Values]]:
    path = run_dir / "clients.csv"
    if not path.is_file():
        return {}
    try:
        with path.open(newline="") as file:
            reader = csv.reader(file)
            names = next(reader, [])
            table = np.array([[_number(text) for text in row] for row in reader], dtype=np.float64)
        rounds, clients = table[:, names.index("round")], table[:, names.index("client")].astype(int)
    except (OSError, ValueError, IndexError, csv.Error) as error:
        raise Unreadable("its clients.csv cannot be read") from error
    columns: dict[str, dict[int, Values]] = {}
    for index, name in enumerate(names):
        if name in ("round", "client"):
            continue
        by_round = columns.setdefault(name, {})
        for round_ in np.unique(rounds):
            values = np.full(int(clients.max()) + 1, np.nan)
            rows = rounds == round_
            values[clients[rows]] = table[rows, index]
            if not np.isnan(values).all():
                by_round[int(round_)] = values
    return columns


def _samples(run_dir: Path) -> str | None:
    folder = run_dir / "checkpoints"
    for round_ in reversed(list_rounds(folder)):
        with suppress(Unusable):
            return Manifest.read(manifest_path(folder, round_)).data or None
    return None


def _sources(run_dir: Path) -> Mapping[str, str]:
    try:
        marker = read_marker(run_dir)
    except Unusable as error:
        raise Unreadable(str(error)) from error
    return marker.sources if marker else {}


def _train_sizes(run_dir: Path) -> Values | None:
    path = run_dir / "client_facts.csv"
    if not path.is_file():
        return None
    try:
        with path.open(newline="") as file:
            return np.array([float(row["train_samples"]) for row in csv.DictReader(file)])
    except (OSError, ValueError, KeyError, csv.Error) as error:
        raise Unreadable("its client_facts.csv cannot be read") from error


def _partition(run_dir: Path) -> str | None:
    """A digest of the tensors and facts in the file. Its own bytes will not do: the order of the facts is random."""
    path = run_dir / "partition.safetensors"
    if not path.is_file():
        return None
    digest = hashlib.sha256()
    try:
        with safe_open(path, framework="numpy") as file:
            digest.update(repr(sorted((file.metadata() or {}).items())).encode())
            for name in sorted(file.keys()):
                tensor = file.get_tensor(name)
                digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode() + tensor.tobytes())
    except (OSError, SafetensorError) as error:
        raise Unreadable("its partition.safetensors cannot be read") from error
    return digest.hexdigest()


def _number(text: str | None) -> float:
    return float(text) if text else math.nan
