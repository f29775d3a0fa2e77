"""Time series from CSV files: the first column is the time, every other column a series."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_lightning.errors import ConfigError

Series = dict[str, NDArray[np.float64]]
ENDINGS = (".csv", ".txt")


def read_series(source: Path) -> Series:
    """The series of a CSV file, or of all CSV files in a folder, by the name of their column.

    Values are put in the order of their time and missing ones are left out. Files with semicolons may write decimals
    with a comma.
    """
    if not source.exists():
        raise ConfigError(f"data.source: {source} does not exist; name a CSV file or a folder of them")
    files = sorted(f for f in source.iterdir() if f.suffix in ENDINGS) if source.is_dir() else [source]
    series: Series = {}
    for file in files:
        for name, values in _read_file(file).items():
            series[name if name not in series else f"{file.stem} {name}"] = values
    if not series:
        raise ConfigError(f"data.source: there is no series in {source}; a file has a line of names, then time, values")
    return series


def _read_file(file: Path) -> Series:
    text = file.read_text(encoding="utf-8-sig").replace('"', "")
    first, _, rest = text.partition("\n")
    if not rest.strip():
        raise ConfigError(f"data.source: {file} has no line of values below its line of names")
    separator = ";" if ";" in first else ","
    if separator == ";":
        text = text.replace(",", ".")
    names = next(csv.reader([first.strip()], delimiter=separator))[1:]
    text = re.sub(rf"(?<={separator})[ \t]*(?={separator}|\r?$)", "nan", text, flags=re.MULTILINE)
    try:
        times = _columns(text, separator, [0], str)[:, 0]
        columns = _columns(text, separator, range(1, len(names) + 1), float)
    except (ValueError, IndexError) as error:
        raise ConfigError(f"data.source: {file} is no table of numbers: {' '.join(str(error).split())}") from error
    ordered = columns[_order(times)]
    return {name: column[np.isfinite(column)] for name, column in zip(names, ordered.T, strict=True)}


def _columns(text: str, separator: str, which: Sequence[int], kind: type) -> NDArray[Any]:
    return np.loadtxt(io.StringIO(text), kind, None, separator, skiprows=1, usecols=which, ndmin=2)


def _order(times: NDArray[np.str_]) -> NDArray[np.int64]:
    """By time where it is a date; otherwise the file's own order."""
    try:
        return np.argsort(times.astype("datetime64[s]"), kind="stable")
    except ValueError:
        return np.arange(len(times))
