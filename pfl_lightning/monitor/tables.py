"""Files that stay: metrics.csv, whole after every round, and summary.json, there completely or not at all."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from pfl_lightning.atomic import write_text
from pfl_lightning.errors import RunError
from pfl_lightning.monitor.record import RoundRecord


class MetricsTable:
    """metrics.csv: one row per round, every column in every row, an empty cell where a round has no value.

    A row goes out in one system call, so neither Ctrl-C nor a kill leaves half of one.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        self.columns = ("round", *(column for column in columns if column != "round"))
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if os.fstat(self._file).st_size == 0:
            self._append(",".join(self.columns))

    def write(self, record: RoundRecord) -> None:
        """Append the row of one round; its numbers read back exactly."""
        row: dict[str, float] = {**record.scalars, "round": record.round}
        unknown = row.keys() - set(self.columns)
        if unknown:
            raise ValueError(f"not among the columns of {self.path.name}: {', '.join(sorted(unknown))}")
        self._append(",".join(_number(row[column]) if column in row else "" for column in self.columns))

    def flush(self) -> None:
        """Make the rows last through a power failure."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _append(self, line: str) -> None:
        data = f"{line}\n".encode()
        size = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, data)
        except OSError as error:
            raise RunError(f"cannot write {self.path}: {error.strerror}") from error
        if written != len(data):
            os.ftruncate(self._file, size)  # a disk that fills up takes a part: better no row than half of one
            raise RunError(f"cannot write {self.path}: the disk is full")


def cut_metrics(path: Path, columns: Sequence[str], last: int) -> None:
    """Drop the rows after round `last`, which come again, and half a row that a full disk or a crash may have left."""
    if not path.exists():
        return
    columns = ("round", *(column for column in columns if column != "round"))
    lines = path.read_text(errors="replace").split("\n")[:-1]  # a row is whole when its line has ended: 1 may be 12
    rows = [row for row in csv.DictReader(lines) if (row.get("round") or "").isdecimal() and int(row["round"]) <= last]
    cells = [columns, *([row.get(column) or "" for column in columns] for row in rows)]
    write_text(path, "".join(",".join(line) + "\n" for line in cells))


def read_metrics(path: Path) -> dict[str, list[float]]:
    """metrics.csv as column -> values in the order of the rounds, with NaN for empty cells."""
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    return {name: [float(row[i]) if row[i] else math.nan for row in rows] for i, name in enumerate(header)}


def write_summary(path: Path, summary: Mapping[str, Any]) -> None:
    """Write JSON so that a reader never finds half a file."""
    try:
        write_text(path, json.dumps(_plain(summary), indent=2, allow_nan=False) + "\n")
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error


def _number(value: float) -> str:
    return repr(int(value)) if isinstance(value, Integral) else repr(float(value))


def _plain(value: Any) -> Any:
    """JSON knows neither NumPy, nor paths, nor NaN (written as null)."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value
