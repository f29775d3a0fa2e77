"""Time series from CSV files: the first column is the time, every other column is one series."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_lightning.foundation.errors import ConfigError

Series = dict[str, NDArray[np.float64]]
ENDINGS = (".csv", ".txt")


def read_series(source: Path) -> Series:
    """Return the series of a CSV file, or of all CSV files in a folder, by the name of their column.

    Values are sorted by time, and missing values are dropped. Equal times keep the order of the file. Files with
    semicolons may write decimals with a comma. A column name that two files share is preceded by the file's name.
    """
    if not source.exists():
        raise ConfigError(f"data.source: {source} does not exist; name a CSV file or a folder of CSV files")
    files = sorted(f for f in source.iterdir() if f.suffix.lower() in ENDINGS) if source.is_dir() else [source]
    series: Series = {}
    for file in files:
        for name, values in _read_file(file).items():
            series[name if name not in series else f"{file.stem} {name}"] = values
    if not series:
        raise ConfigError(
            f"data.source: there is no series in {source}; put CSV files there, such as AEP_hourly.csv with the "
            "columns Datetime and AEP_MW"
        )
    return series


def most_distinct(series: Sequence[NDArray[np.float64]], count: int) -> list[int]:
    """Return the positions of `count` series far apart from each other, sorted.

    The distance of two series is the Euclidean distance of their last values, as many as the shortest series has. The
    first two are the pair with the largest distance. Each further one has the largest distance to its nearest
    neighbour among those already chosen. No random number is drawn.
    """
    length = min(len(one) for one in series)
    rows = np.stack([one[len(one) - length :] for one in series])
    squares = np.einsum("ij,ij->i", rows, rows)
    distances = squares[:, None] + squares[None, :] - 2 * rows @ rows.T
    chosen = [int(i) for i in np.unravel_index(np.argmax(distances), distances.shape)][:count]
    while len(chosen) < count:
        nearest = distances[chosen].min(axis=0)
        nearest[chosen] = -np.inf
        chosen.append(int(np.argmax(nearest)))
    return sorted(chosen)


def _read_file(file: Path) -> Series:
    try:
        text = file.read_text(encoding="utf-8-sig").replace('"', "")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"data.source: {file} cannot be read as text: {error}") from error
    first, _, rest = text.partition("\n")
    if not rest.strip():
        raise ConfigError(f"data.source: {file} has no line of values below its line of names")
    separator = ";" if ";" in first else ","
    if separator == ";":
        text = text.replace(",", ".")
    names = next(csv.reader([first.strip()], delimiter=separator))[1:]
    if len(set(names)) < len(names):
        raise ConfigError(f"data.source: {file} has two columns of the same name; rename one of them")
    text = re.sub(rf"(?<={separator})[ \t]*(?={separator}|\r?$)", "nan", text, flags=re.MULTILINE)
    try:
        times = _columns(text, separator, [0], str)[:, 0]
        columns = _columns(text, separator, range(1, len(names) + 1), float)
    except (ValueError, IndexError) as error:
        raise ConfigError(f"data.source: {file} is not a table of numbers: {' '.join(str(error).split())}") from error
    ordered = columns[_order(times)]
    return {name: column[np.isfinite(column)] for name, column in zip(names, ordered.T, strict=True)}


def _columns(text: str, separator: str, which: Sequence[int], kind: type) -> NDArray[Any]:
    return np.loadtxt(text.splitlines(), kind, None, separator, skiprows=1, usecols=which, ndmin=2)


def _order(times: NDArray[np.str_]) -> NDArray[np.int64]:
    """Sort by time if the times are dates. Otherwise keep the order of the file."""
    try:
        return np.argsort(times.astype("datetime64[s]"), kind="stable")
    except ValueError:
        return np.arange(len(times))
