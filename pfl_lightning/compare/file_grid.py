"""The `grid` of an experiment file, and the paper's values for its columns."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pfl_lightning.compare.experiment import Column
from pfl_lightning.compare.file_checks import as_keys, as_mapping, check_key, find_file
from pfl_lightning.foundation.errors import ConfigError, require

PAPER_VALUE = re.compile(r"-?\d+(\.\d+)?\s*(±\s*\d+(\.\d+)?)?")


def columns_from(grid: object, folder: Path) -> list[Column]:
    """The product of the grid's axes. The last axis changes fastest."""
    grid = as_mapping(grid, "grid")
    last_words = [str(name).rpartition(".")[2] for name in grid]
    axes = []
    for name, word in zip(grid, last_words, strict=True):
        axes.append(_axis(name, word if last_words.count(word) == 1 else name, grid[name], folder))
    columns = [_joined(points) for points in itertools.product(*axes)]
    labels = [column.label for column in columns]
    require(len(set(labels)) == len(labels), "grid", labels, "different values in each axis")
    return columns


def paper_from(content: object, labels: Sequence[str], columns: Sequence[str]) -> dict[tuple[str, str], str]:
    """(method, column) → the paper's number as text, such as `84.2 ± 0.3`."""
    paper = {}
    for label, values in as_mapping(content, "paper").items():
        require(label in labels, "paper", label, " | ".join(labels))
        if not isinstance(values, Mapping):
            listed = values if isinstance(values, list) else [values]
            fine = len(listed) == len(columns)
            require(fine, f"paper.{label}", values, f"a value for each column: {' | '.join(columns)}")
            values = {column: value for column, value in zip(columns, listed, strict=True) if value is not None}
        for column, value in values.items():
            require(column in columns, f"paper.{label}", column, " | ".join(columns))
            fine = PAPER_VALUE.fullmatch(str(value).strip()) is not None
            require(fine, f"paper.{label}", value, "a number, or text such as 84.2 ± 0.3")
            paper[str(label), str(column)] = str(value).strip()
    return paper


def _axis(name: str, short: str, values: object, folder: Path) -> list[Column]:
    """A list of values for a key, or labels with their settings."""
    if isinstance(values, list) and values:
        check_key(name, "grid")
        return [Column(f"{short}={_shown(value)}", None, {name: value}) for value in values]
    if not isinstance(values, Mapping) or not values:
        raise ConfigError(f"grid.{name}: {values!r} is not allowed; use a list of values, or labels with settings")
    points = []
    for label, settings in values.items():
        where = f"grid.{name}.{label}"
        keys = dict(as_mapping(settings or {}, where))
        base = keys.pop("base", None)
        path = None if base is None else find_file(base, folder, f"{where}.base")
        points.append(Column(str(label), path, as_keys(keys, where)))
    return points


def _joined(points: Sequence[Column]) -> Column:
    bases = [point.base for point in points if point.base]
    require(len(bases) <= 1, "grid", "a base in two axes", "a base in one axis only")
    keys = {key: value for point in points for key, value in point.keys.items()}
    return Column(", ".join(point.label for point in points), bases[0] if bases else None, keys)


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)
