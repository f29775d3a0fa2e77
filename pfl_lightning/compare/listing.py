"""The cells of a comparison with their state and cost, for `--dry-run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pfl_lightning.compare.comparison import Stage
from pfl_lightning.compare.estimate import duration, paces, remaining, rounds_done
from pfl_lightning.compare.plan import Cell
from pfl_lightning.compare.results import Results

Timed = Sequence[tuple[Cell, int, float]]


def listing(stage: Stage, results: Results, queued: Mapping[str, str], timed: Timed) -> list[dict[str, Any]]:
    """One line per cell: state, rounds, visits, epochs of local training, and remaining seconds where known."""
    pace = paces(timed)
    rows = []
    for cell in stage.cells.values():
        path = results.unfinished.get(cell.id)
        done = cell.rounds if cell.id in results.finished else rounds_done(path) if path else 0
        rows.append(
            {
                "method": cell.method,
                "column": cell.column,
                "seed": cell.seed,
                "searched": cell.searched,
                "label": cell.label,
                "id": cell.id,
                "state": _state(cell, results, queued),
                "rounds_done": done,
                "rounds": cell.rounds,
                "visits": cell.visits,
                "epochs": cell.cost,
                "seconds_left": remaining([(cell, done)], pace, 1) if done < cell.rounds else 0.0,
            }
        )
    return rows


def as_text(rows: Sequence[Mapping[str, Any]], slots: int, searching: bool) -> str:
    """The list for people, with a total."""
    width = max(len(row["label"]) for row in rows)
    lines = [f"{'cell':{width}}  {'state':10} {'rounds':>11} {'visits':>8} {'client epochs':>13}  time left"]
    for row in rows:
        left = row["seconds_left"]
        time = "?" if left is None else duration(left)
        rounds = f"{row['rounds_done']} of {row['rounds']}"
        words = f"{row['state']:10} {rounds:>11} {row['visits']:>8,} {row['epochs']:>13,}  {time}"
        lines.append(f"{row['label']:{width}}  {words}")
    open_rows = [row for row in rows if row["state"] != "finished"]
    each = [row["seconds_left"] for row in open_rows]
    if None in each:
        total = "time unknown until the first rounds have run"
    else:
        total = f"about {duration(max(sum(each) / slots, max(each, default=0.0)))} with {slots} at a time"
    lines.append(f"{len(rows)} cells, {len(rows) - len(open_rows)} finished; the rest: {total}")
    if searching:
        lines.append("These are the trials of a search. The cells of the table follow from its outcome.")
    return "\n".join(lines)


def _state(cell: Cell, results: Results, queued: Mapping[str, str]) -> str:
    if cell.id in results.finished:
        return "finished"
    if cell.id in queued:
        return "queued"
    return "unfinished" if cell.id in results.unfinished else "missing"
