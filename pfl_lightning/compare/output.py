"""The files of a comparison."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pfl_lightning.compare.cell_json import text_of
from pfl_lightning.compare.csv_table import csv_table
from pfl_lightning.compare.latex import latex
from pfl_lightning.compare.likeness import Outcome
from pfl_lightning.compare.markdown import markdown
from pfl_lightning.compare.page_table import page_table
from pfl_lightning.compare.questions import Answers
from pfl_lightning.compare.run_folder import file_name
from pfl_lightning.compare.runs_csv import runs_csv
from pfl_lightning.compare.table import Table
from pfl_lightning.compare.trials import FILE as TRIALS
from pfl_lightning.compare.trials import Tried, trials_text
from pfl_lightning.foundation.atomic_files import make_folder, write_text
from pfl_lightning.foundation.errors import ConfigError

INDEX = "comparison.json"


def write_tables(folder: Path, table: Table, answers: Sequence[Answers]) -> list[Path]:
    """Write table.md, table.csv and table.tex."""
    make_folder(folder)
    texts = {
        "table.md": markdown(table, answers),
        "table.csv": csv_table(table, answers),
        "table.tex": latex(table, answers),
    }
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def write_cells(folder: Path, outcomes: Sequence[Outcome], tried: Sequence[Tried]) -> None:
    """Write a JSON file for every finished cell of the table and one for all trials, and runs.csv beside the folder."""
    make_folder(folder)
    if tried:
        write_text(folder / TRIALS, trials_text(tried))
    write_text(folder.parent / "runs.csv", runs_csv(outcomes))
    names: Counter[str] = Counter()
    for outcome in outcomes:
        for measurement in outcome.measurements:
            name = file_name(measurement.cell)
            names[name] += 1  # rows with similar labels may report the same run
            write_text(folder / f"{name}{f'-{names[name]}' if names[name] > 1 else ''}.json", text_of(measurement))


def write_index(folder: Path, name: str, outcomes: Sequence[Outcome], table: Table, answers: Sequence[Answers]) -> None:
    """Write comparison.json for pfl-report: the finished cells with the directories of their runs, and the table.

    Published cells have no directory, so they are in the table only.
    """
    cells = [
        {"method": m.cell.method, "column": m.cell.column, "seed": m.cell.seed, "id": m.cell.id,
         "metric": m.metric.column, "directory": m.run_dir.name}
        for outcome in outcomes for m in outcome.measurements if m.run_dir.is_dir()
    ]  # fmt: skip
    content = {"name": name, "cells": cells, "table": page_table(table, answers)}
    write_text(folder / INDEX, json.dumps(content, indent=1) + "\n")


def lost_rows(folder: Path, outcomes: Sequence[Outcome]) -> list[str]:
    """Rows of the table in a folder that a new table does not have, as when another experiment has the same name."""
    try:
        cells = json.loads((folder / INDEX).read_text())["cells"]
        rows = dict.fromkeys(str(cell["method"]) for cell in cells)
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [row for row in rows if row not in {outcome.entry.method for outcome in outcomes}]


def check_page(page: Path, name: str) -> None:
    """Refuse a page without a place for the table."""
    begin, end = _marks(name)
    try:
        text = page.read_text()
    except OSError as error:
        raise ConfigError(f"page: {page} cannot be read: {error.strerror}") from error
    if not (0 <= text.find(begin) < text.find(end)):
        raise ConfigError(f"page: {page} has no place for the table; add the lines {begin} and {end}")


def write_page(page: Path, name: str, text: str) -> None:
    """Put the tables between the two marks of a page."""
    begin, end = _marks(name)
    old = page.read_text()
    before, after = old[: old.index(begin) + len(begin)], old[old.index(end) :]
    write_text(page, f"{before}\n\n{text}\n{after}")


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- pfl-compare {name}: begin -->", f"<!-- pfl-compare {name}: end -->"
