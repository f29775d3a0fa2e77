"""The folder of a comparison: which run belongs to which row of its table."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.report.run_data import RunData, read_run

INDEX = "comparison.json"
"""Written by `pfl-compare`: the finished cells of the table with the directories of their runs, and the table."""
TABLE_KEYS = {"caption", "header", "rows", "notes", "verdicts"}


@dataclass(frozen=True)
class ComparisonTable:
    """The table of a comparison, with the keys that `pfl_lightning.compare.page_table` describes."""

    name: str
    content: dict[str, Any]


def is_comparison(path: Path) -> bool:
    """Whether a folder holds a comparison with finished cells."""
    return (path / INDEX).is_file()


def read_comparison(path: Path) -> list[RunData]:
    """The runs of a comparison's table, each with the label and the column that the table has for it.

    Other runs in the folder (trials of a search, runs of an older experiment file) are left out.
    """
    runs = []
    if not (cells := _index(path)["cells"]):
        raise ConfigError(
            f"run: the table in {path} was made from published cells alone, so there are no runs to draw; "
            f"see {path / 'table.md'}, or run pfl-compare without --cells"
        )
    for cell in cells:
        label = ", ".join(word for word in (cell["method"], cell["column"]) if word)
        runs.append(replace(read_run(path / "runs" / cell["directory"]), label=label, reported=cell["metric"]))
    return runs


def read_table(path: Path) -> ComparisonTable | None:
    """The comparison's table. None if an older version of `pfl-compare` has left it out."""
    index = _index(path)
    table = index.get("table")
    if not isinstance(table, dict) or not table.keys() >= TABLE_KEYS:
        return None
    return ComparisonTable(str(index["name"]), table)


def _index(path: Path) -> dict[str, Any]:
    try:
        index = json.loads((path / INDEX).read_text())
        cells, published = index["cells"], index["cells"] == [] and "table" in index
        if published or (cells and all({"method", "column", "directory", "metric"} <= c.keys() for c in cells)):
            return {"name": path.name, **index}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise ConfigError(f"run: {path / INDEX} cannot be read; make it again with pfl-compare --table-only")
