"""The results of a run: metrics.csv, complete after every round, and summary.json, written at the end."""

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

from pfl_lightning.foundation.atomic_files import write_bytes, write_text
from pfl_lightning.foundation.errors import RunError
from pfl_lightning.metrics.record import RoundRecord


class MetricsTable:
    """metrics.csv: one row per round, every column in every row, an empty cell where a round has no value.

    A row is written by one system call, so neither Ctrl-C nor a kill leaves half of one.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        self.columns = _with_round(columns)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        with open(self._file, "rb", closefd=False) as file:
            self._text = bytearray(file.read())
        if not self._text:
            self._append(",".join(self.columns))

    @property
    def text(self) -> bytes:
        """The header and all rows so far."""
        return bytes(self._text)

    def write(self, record: RoundRecord) -> None:
        """Append the row of one round. Its numbers read back exactly."""
        row: dict[str, float] = {**record.scalars, "round": record.round}
        unknown = row.keys() - set(self.columns)
        if unknown:
            raise ValueError(f"not among the columns of {self.path.name}: {', '.join(sorted(unknown))}")
        self._append(",".join(_number(row[column]) if column in row else "" for column in self.columns))

    def flush(self) -> None:
        """Flush the rows to disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file. Closing twice is fine."""
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
            os.ftruncate(self._file, size)  # a disk that fills up takes a part of the row: better none than half of one
            raise RunError(f"cannot write {self.path}: the disk is full")
        self._text += data


def restore_metrics(path: Path, columns: Sequence[str], saved: bytes) -> bool:
    """Restore metrics.csv as of a checkpoint. Returns whether it had lost or changed any of those rows.

    Rows of later rounds are dropped, because these rounds are trained again.

    Args:
        path: of metrics.csv.
        columns: the columns of this run.
        saved: the content at the checkpoint. Empty to begin again.
    """
    present = path.read_bytes() if path.is_file() else b""
    wanted = _select_columns(saved, _with_round(columns)) if saved else b""
    if present != wanted or path.is_symlink():
        write_bytes(path, wanted)
    return not present.startswith(saved)


def _select_columns(text: bytes, columns: Sequence[str]) -> bytes:
    """The same rows with these columns: another version may write others."""
    rows = [[row.get(column) or "" for column in columns] for row in csv.DictReader(text.decode().splitlines())]
    return "".join(",".join(cells) + "\n" for cells in (columns, *rows)).encode()


def _with_round(columns: Sequence[str]) -> tuple[str, ...]:
    return ("round", *(column for column in columns if column != "round"))


def read_metrics(path: Path) -> dict[str, list[float]]:
    """Read metrics.csv: column -> values in the order of the rounds, NaN for empty cells."""
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    return {name: [float(row[i]) if row[i] else math.nan for row in rows] for i, name in enumerate(header)}


def write_summary(path: Path, summary: Mapping[str, Any]) -> None:
    """Write summary.json. A reader never finds half a file."""
    try:
        write_text(path, json.dumps(_plain(summary), indent=2, allow_nan=False) + "\n")
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error


def _number(value: float) -> str:
    return repr(int(value)) if isinstance(value, Integral) else repr(float(value))


def _plain(value: Any) -> Any:
    """A value that JSON can hold: NumPy becomes lists and numbers, paths become text, NaN and infinity become null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value
