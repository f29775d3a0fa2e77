"""The results that a run has left in its directory."""

from __future__ import annotations

import csv
import errno
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import yaml
from numpy.typing import NDArray

from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.monitor.client_tables import CLIENTS, FACTS, PERSONAL

Floats = NDArray[np.float64]
T = TypeVar("T")


@dataclass(frozen=True)
class PersonalEntries:
    """Personal entries of each tensor, as means over the participants of a round."""

    rounds: Floats
    tensors: tuple[str, ...]
    sizes: Floats
    """Entries of each tensor. # [tensors]"""
    counts: Floats
    """# [rounds, tensors]"""

    @property
    def is_by_tensor(self) -> bool:
        """Whether tensors are personal as a whole or not at all, in every round."""
        return bool(np.isin(self.share_of_tensor, (0.0, 1.0)).all())

    @property
    def share_of_tensor(self) -> Floats:
        """The personal share of each tensor. # [rounds, tensors]"""
        return self.counts / self.sizes

    @property
    def share_of_personal(self) -> Floats:
        """The share of all personal entries that lies in each tensor. # [rounds, tensors]"""
        shares: Floats = self.counts / np.maximum(self.counts.sum(axis=1, keepdims=True), 1e-12)
        return shares


@dataclass(frozen=True)
class RunData:
    """A run, finished or not."""

    path: Path
    config: dict[str, Any]
    metrics: dict[str, list[float]]
    """Column of metrics.csv to values in the order of the rounds."""
    summary: dict[str, Any] = field(default_factory=dict)
    """Empty while the run is not finished."""
    evaluated: int = 0
    """Round of the last evaluation in clients.csv. 0 if there is none."""
    clients: dict[str, Floats] = field(default_factory=dict)
    """Column of clients.csv to the values of all clients at the last evaluation."""
    facts: dict[str, list[str]] = field(default_factory=dict)
    """Column of client_facts.csv to the values of all clients."""
    personal: PersonalEntries | None = None
    measured: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    """Column of metrics.csv to the rounds with a value, NaN included. By default all but NaN."""
    label: str = ""
    """Its row in the table of a comparison."""
    reported: str = ""
    """The column that this table reports for it."""

    @property
    def method(self) -> str:
        """The name of the algorithm's class."""
        return str(self.config["algorithm"]["class_path"]).rpartition(".")[2]

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.config.get("seed", 0))

    @property
    def net(self) -> Any:
        """The settings of its net. None if its task has none."""
        return ((self.config.get("task") or {}).get("init_args") or {}).get("net")

    @property
    def num_clients(self) -> int:
        """The number of clients. 0 if it is not known."""
        return len(self.facts.get("client", ()))

    @property
    def class_names(self) -> list[str]:
        """The names of the classes. Empty if the targets are numbers."""
        return [column.removeprefix("label_") for column in self.facts if column.startswith("label_")]

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """Training samples of each class at each client. # [clients, classes]"""
        columns = [self.facts[f"label_{name}"] for name in self.class_names]
        return np.array(columns, dtype=np.int64).T

    @property
    def sample(self) -> str:
        """How many clients evaluations test: "3 of 12 clients". Empty: all of them, or it is not known."""
        _, tested = self.series("all_clients")
        of = f" of {self.num_clients:,}" if self.num_clients else ""
        return f"{tested[-1]:,.0f}{of} clients" if len(tested) else ""

    def series(self, column: str) -> tuple[Floats, Floats]:
        """(rounds, values) wherever a column of metrics.csv has a value. NaN is one: leaving it out would flatter."""
        rounds, values = np.array(self.metrics["round"]), np.array(self.metrics.get(column, []), dtype=np.float64)
        if not len(values):
            return np.zeros(0), np.zeros(0)
        known = self.measured.get(column, ~np.isnan(values))
        return rounds[known], values[known]

    def total_bytes(self) -> Floats:
        """Bytes sent by all clients, up and down, until the end of each round."""
        sent = [np.nan_to_num(np.array(self.metrics.get(name, [0.0]))) for name in ("up_bytes", "down_bytes")]
        return np.cumsum(sent[0] + sent[1])


def read_run(path: Path) -> RunData:
    """Read the files of a run. Raises a `ConfigError` if it is not a run or has no complete round."""
    if not (path / "config.yaml").is_file():
        raise ConfigError(f"run: {path} is not the directory of a run: it has no config.yaml")
    config, summary = _read(path / "config.yaml", _yaml), _read(path / "summary.json", _json)
    cells = _read(path / "metrics.csv", _metrics)
    metrics = {name: values for name, (values, _) in cells.items()}
    measured = {name: known for name, (_, known) in cells.items()}
    evaluated, clients = _read(path / CLIENTS, _last_evaluation)
    facts, personal = _read(path / FACTS, _columns), _read(path / PERSONAL, _personal)
    if not isinstance(config, dict) or not isinstance(config.get("algorithm"), dict):
        raise ConfigError(f"run: {path / 'config.yaml'} is not the config of a run")
    if not isinstance(summary, dict):
        raise ConfigError(f"run: {path / 'summary.json'} is not the summary of a run")
    if not metrics.get("round"):
        raise ConfigError(f"run: {path} has no complete round yet")
    return RunData(path, config, metrics, summary, evaluated, clients, facts, personal, measured)


def find_runs(paths: list[Path]) -> list[Path]:
    """The run directories among paths and directly below them, such as in the folder of a comparison."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise ConfigError(f"run: there is no directory {path}")
        inner = sorted({*path.glob("*/config.yaml"), *path.glob("runs/*/config.yaml")})
        found += [path] if (path / "config.yaml").is_file() or not inner else [file.parent for file in inner]
    return list(dict.fromkeys(found))


def _read(path: Path, reader: Callable[[Path], T]) -> T:
    """Read a file. Raises a `ConfigError` that names it."""
    try:
        return reader(path)
    except OSError as error:
        raise ConfigError(f"run: {path} cannot be read: {error.strerror}") from error
    except (ValueError, IndexError, KeyError, TypeError, RecursionError, csv.Error, yaml.YAMLError) as error:
        raise ConfigError(f"run: {path} cannot be read: it is damaged") from error


def _yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def _json(path: Path) -> Any:
    return json.loads(path.read_text()) if path.is_file() else {}


def _metrics(path: Path) -> dict[str, tuple[list[float], NDArray[np.bool_]]]:
    """Column to its values, and to whether there is one."""
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    table = _columns(path).items()
    return {
        name: ([_number(cell) for cell in cells], np.array([cell != "" for cell in cells])) for name, cells in table
    }


def _columns(path: Path) -> dict[str, list[str]]:
    if not path.is_file():
        return {}
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    return {name: [row[index] for row in rows] for index, name in enumerate(header)}


def _last_evaluation(path: Path) -> tuple[int, dict[str, Floats]]:
    table = {name: np.array([_number(cell) for cell in cells]) for name, cells in _columns(path).items()}
    if not table or not len(table["round"]):
        return 0, {}
    last = table["round"] == table["round"].max()
    return int(table["round"].max()), {name: cells[last] for name, cells in table.items()}


def _personal(path: Path) -> PersonalEntries | None:
    table = _columns(path)
    if not table or not table["round"]:
        return None
    tensors = tuple(dict.fromkeys(table["tensor"]))
    shape = (-1, len(tensors))
    rounds, sizes, counts = (np.array(table[name], dtype=np.float64) for name in ("round", "size", "personal"))
    return PersonalEntries(rounds.reshape(shape)[:, 0], tensors, sizes[: len(tensors)], counts.reshape(shape))


def _number(cell: str) -> float:
    return float(cell) if cell else math.nan
