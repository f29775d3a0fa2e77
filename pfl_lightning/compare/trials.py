"""The trials of a search as a file: what was tried, what validation said, and what was chosen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pfl_lightning.compare.experiment import Keys
from pfl_lightning.compare.plan import Cell
from pfl_lightning.foundation.errors import ConfigError

FILE = "trials.json"


class Tried(NamedTuple):
    """A trial that is over.

    Attributes:
        cell: its run.
        values: the values that it tried.
        validation: its result on validation data. None if it failed.
        chosen: whether validation chose it.
    """

    cell: Cell
    values: Keys
    validation: float | None
    chosen: bool


def trials_text(tried: Sequence[Tried]) -> str:
    """The trials of all searches, a line each."""
    lines = [
        json.dumps({"method": cell.method, "column": cell.column, "seed": cell.seed, "values": dict(values),
                    "validation": validation, "chosen": chosen, "id": cell.id})
        for cell, values, validation, chosen in tried
    ]  # fmt: skip
    return "[\n" + ",\n".join(lines) + "\n]\n"


def read_trials(folder: Path) -> dict[str, float | None]:
    """Identity of a trial's cell → its result on validation data, of the file in a folder of published cells."""
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        found: dict[str, float | None] = {
            str(trial["id"]): None if trial["validation"] is None else float(trial["validation"])
            for trial in json.loads(path.read_text())
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"cells: {path} is not a file of trials: {type(error).__name__}: {error}") from error
    return found
