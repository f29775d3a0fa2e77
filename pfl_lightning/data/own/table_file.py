"""Tables in CSV and Parquet files, read in blocks of rows."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from pfl_lightning.foundation.errors import ConfigError

Column: TypeAlias = NDArray[Any]
"""Values of one column: numbers, text (U) or, in Parquet files, lists of numbers with one length [n, L]."""
SEPARATORS = (",", ";", "\t")
PARQUET = (".parquet", ".pq")


class TableFile:
    """A file with named columns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns = self._read_columns()
        if repeated := [name for name in self.columns if self.columns.count(name) > 1]:
            raise ConfigError(f"source: {path} has more than one column {repeated[0]}")

    def require(self, key: str, name: str) -> str:
        """A column that exists, or a `ConfigError` that names the setting."""
        if name not in self.columns:
            raise ConfigError(f"{key}: {self.path} has no column {name}; it has {', '.join(self.columns)}")
        return name

    def blocks(self, columns: list[str], rows: int) -> Iterator[dict[str, Column]]:
        """The named columns, some rows at a time."""
        raise NotImplementedError

    def place(self, row: int) -> str:
        """Where a row is, for messages."""
        raise NotImplementedError

    def _read_columns(self) -> list[str]:
        raise NotImplementedError


def open_table(path: Path) -> TableFile:
    """Open a CSV or Parquet file."""
    return ParquetFile(path) if path.suffix.lower() in PARQUET else CsvFile(path)


class CsvFile(TableFile):
    """A text file with a line of names, then one line for each row. The separator is a comma, semicolon or tab."""

    @override
    def _read_columns(self) -> list[str]:
        header = next(self._lines(), (1, []))[1]
        if not any(header):
            raise ConfigError(f"source: {self.path} is empty; its first line must name the columns")
        return [name.strip() for name in header]

    @override
    def blocks(self, columns: list[str], rows: int) -> Iterator[dict[str, Column]]:
        at = [self.columns.index(name) for name in columns]
        lines = islice(self._lines(), 1, None)
        while some := list(islice(lines, rows)):
            for number, line in some:
                if len(line) != len(self.columns):
                    raise ConfigError(
                        f"data: {self.path} line {number}: {len(line)} values for {len(self.columns)} columns"
                    )
            yield {name: np.array([line[i].strip() for _, line in some]) for name, i in zip(columns, at, strict=True)}

    @override
    def place(self, row: int) -> str:
        number = next(islice(self._lines(), row + 1, None))[0]
        return f"{self.path} line {number}"

    def _lines(self) -> Iterator[tuple[int, list[str]]]:
        """Number and values of every non-empty line."""
        try:
            with self.path.open(newline="", encoding="utf-8-sig") as file:
                first = file.readline()
                file.seek(0)
                reader = csv.reader(file, delimiter=max(SEPARATORS, key=first.count))
                yield from ((reader.line_num, line) for line in reader if line)
        except UnicodeDecodeError as error:
            raise ConfigError(f"source: {self.path} is not a text file in UTF-8") from error
        except csv.Error as error:
            raise ConfigError(f"data: {self.path} line {reader.line_num}: {error}") from error
        except OSError as error:
            raise ConfigError(f"source: cannot read {self.path}: {error.strerror}") from error


class ParquetFile(TableFile):
    """A Parquet file, read by pyarrow."""

    @override
    def _read_columns(self) -> list[str]:
        try:
            parquet = importlib.import_module("pyarrow.parquet")
        except ImportError as error:
            raise ConfigError(
                f"source: {self.path} needs the package pyarrow: pip install 'pfl_lightning[own_data]'"
            ) from error
        try:
            self._file = parquet.ParquetFile(self.path)
        except (OSError, ValueError) as error:
            raise ConfigError(f"source: {self.path} is not a Parquet file: {' '.join(str(error).split())}") from error
        return list(self._file.schema_arrow.names)

    @override
    def blocks(self, columns: list[str], rows: int) -> Iterator[dict[str, Column]]:
        start = 0
        for batch in self._file.iter_batches(rows, columns=columns):
            yield {name: self._column(name, batch.column(name), start) for name in columns}
            start += len(batch)

    @override
    def place(self, row: int) -> str:
        return f"{self.path} row {row + 1}"

    def _column(self, name: str, values: Any, start: int) -> Column:
        if values.null_count:
            row = start + int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
            raise ConfigError(f"data: {self.place(row)}: column {name} has no value")
        if hasattr(values, "flatten") and hasattr(values, "value_lengths"):
            return self._lists(name, values, start)
        array = np.asarray(values.to_numpy(zero_copy_only=False))
        return array if array.dtype.kind in "biuf" else np.array(values.cast("string").to_pylist(), dtype=np.str_)

    def _lists(self, name: str, values: Any, start: int) -> Column:
        """Lists of numbers, which must have one length."""
        lengths = values.value_lengths().to_numpy(zero_copy_only=False)
        if (lengths != lengths[0]).any():
            row = start + int((lengths != lengths[0]).argmax())
            raise ConfigError(
                f"data: {self.place(row)}: column {name} has a list of another length than the rows before; pad them"
            )
        return np.asarray(values.flatten().to_numpy(zero_copy_only=False)).reshape(len(values), int(lengths[0]))
