"""The folder of a comparison: which run belongs to which row of its table."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.report.run_data import RunData, read_run

INDEX = "comparison.json"
"""Written by `pfl-compare`: the finished cells of the table, and the directories of their runs."""
SHOWN = {
    "worst_tenth": "worst tenth",
    "worse_than_local": "% worse than Local",
    "mib": "MiB sent",
    "steps_per_visit": "steps per visit",
}
"""Columns of table.csv that the page shows, and their titles."""


@dataclass(frozen=True)
class ComparisonTable:
    """The table of a comparison as the page shows it."""

    name: str
    header: list[str]
    rows: list[list[str]]


def is_comparison(path: Path) -> bool:
    """Whether a folder holds a comparison with finished cells."""
    return (path / INDEX).is_file()


def read_comparison(path: Path) -> list[RunData]:
    """The runs of a comparison's table, each with the label and the column that the table has for it.

    Other runs in the folder (trials of a search, runs of an older experiment file) are left out.
    """
    runs = []
    for cell in _index(path)["cells"]:
        label = ", ".join(word for word in (cell["method"], cell["column"]) if word)
        runs.append(replace(read_run(path / "runs" / cell["directory"]), label=label, reported=cell["metric"]))
    return runs


def read_table(path: Path) -> ComparisonTable | None:
    """The comparison's table; None if it cannot be read."""
    try:
        with (path / "table.csv").open(newline="") as file:
            found = list(csv.DictReader(file))
        has_columns = any(row["column"] for row in found)
        shown = [key for key in SHOWN if any(row.get(key) for row in found)]
        header = ["method", *(["setting"] if has_columns else []), "reported", "mean ± deviation"]
        rows = [_row(row, has_columns, shown) for row in found]
    except (OSError, ValueError, KeyError, csv.Error):
        return None
    return ComparisonTable(str(_index(path)["name"]), [*header, *(SHOWN[key] for key in shown)], rows)


def _row(row: dict[str, str], has_columns: bool, shown: list[str]) -> list[str]:
    mean = _text(row["mean"]) + (f" ± {_text(row['deviation'])}" if row["deviation"] else "")
    note = f" ({row['notes']})" if row["notes"] else ""
    head = [row["method"], *([row["column"]] if has_columns else []), row["reported"], mean + note]
    return [*head, *(_text(row.get(key, "")) for key in shown)]


def _text(cell: str) -> str:
    if not cell:
        return ""
    value = float(cell)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 1 or not value else f"{value:.3g}"


def _index(path: Path) -> dict[str, Any]:
    try:
        index = json.loads((path / INDEX).read_text())
        if (
            all({"method", "column", "directory", "metric"} <= cell.keys() for cell in index["cells"])
            and index["cells"]
        ):
            return {"name": path.name, **index}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise ConfigError(f"run: {path / INDEX} cannot be read; make it again with pfl-compare --table-only")
