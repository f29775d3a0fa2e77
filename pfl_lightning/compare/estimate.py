"""How long the rest of a comparison takes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pfl_lightning.compare.plan import Cell
from pfl_lightning.compare.run_facts import Unreadable, read_rounds


@dataclass(frozen=True)
class Work:
    """A cell in progress."""

    cell: Cell
    rounds: int
    """Rounds done, those of earlier stretches included."""
    rounds_before: int
    """Rounds done when this stretch began."""
    seconds: float
    """Since this stretch began."""


def rounds_done(run_dir: Path) -> int:
    """Number of rounds in a run's metrics.csv."""
    try:
        with (run_dir / "metrics.csv").open("rb") as file:
            return max(0, sum(1 for _ in file) - 1)
    except OSError:
        return 0


def seconds_spent(run_dir: Path) -> float:
    """Seconds of all rounds that a run has recorded."""
    try:
        return math.fsum(row.get("seconds", 0.0) for row in read_rounds(run_dir))
    except Unreadable:
        return math.nan


def paces(timed: Iterable[tuple[Cell, int, float]]) -> dict[str, float]:
    """Method → seconds per unit of cost, from (cell, rounds, seconds). The empty method is the mean of all."""
    seconds: dict[str, float] = {}
    units: dict[str, float] = {}
    for cell, rounds, taken in timed:
        if not rounds or math.isnan(taken):
            continue
        for key in (cell.method, ""):
            seconds[key] = seconds.get(key, 0.0) + taken
            units[key] = units.get(key, 0.0) + cell.cost * rounds / cell.rounds
    return {key: seconds[key] / units[key] for key in seconds}


def remaining(left: Sequence[tuple[Cell, int]], pace: Mapping[str, float], slots: int) -> float | None:
    """Seconds until all cells are done, from (cell, rounds done). None while nothing was timed.

    It is the total over the slots, but no less than the longest single cell.
    """
    if "" not in pace:
        return None if left else 0.0
    each = [(1 - done / cell.rounds) * cell.cost * pace.get(cell.method, pace[""]) for cell, done in left]
    return max(math.fsum(each) / slots, max(each, default=0.0))


def duration(seconds: float) -> str:
    """A duration as people say it: 45 s, 12 min, 3.4 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
