"""The main table for the page of `pfl-report`, as plain values that JSON can hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pfl_lightning.compare.questions import Answers
from pfl_lightning.compare.table import Row, Table
from pfl_lightning.compare.verdict import verdicts

SHOWN = {
    "worst_tenth": "worst tenth",
    "worse_than_local": "% worse than Local",
    "mib": "MiB sent",
    "steps_per_visit": "steps per visit",
}
"""Questions that the page shows beside the value, and their titles."""


def page_table(table: Table, answers: Sequence[Answers]) -> dict[str, Any]:
    """Caption, header, rows, footnotes and verdicts. A row is a method in one column of the grid.

    A row's `value` is the place of its result among its `cells`. `rank` and `marks` belong to that cell.
    """
    named, with_paper = any(table.columns), any(table.has_paper)
    keys = [key for key in SHOWN if any(question.key == key for answer in answers for question in answer.questions)]
    header = ["method", *(["setting"] if named else []), "reported", table.unit, *(["paper"] if with_paper else [])]
    rows = []
    for index, answer in enumerate(answers):
        for row in table.rows:
            place = row.places[index]
            head = [_name(row), *([answer.column] if named else []), row.reported]
            paper = [place.paper] if with_paper else []
            cells = [*head, place.text or "—", *paper, *(_text(answer, key, row.method) for key in keys)]
            rows.append({"cells": cells, "value": len(head), "rank": place.rank, "marks": list(place.marks)})
    said = [{"column": one.column, "lines": verdicts(one, _marked(table, one.column))} for one in answers]
    return {
        "caption": table.caption,
        "header": [*header, *(SHOWN[key] for key in keys)],
        "rows": rows,
        "notes": dict(table.notes),
        "verdicts": [one for one in said if one["lines"]],
    }


def _marked(table: Table, column: str) -> dict[str, str]:
    """Method → its name with the letters of its footnotes: an unlike row is not better without saying so."""
    return {row: f"{row} ({', '.join(marks)})" if marks else row for row, marks in table.marks(column).items()}


def _name(row: Row) -> str:
    return f"{row.method} (control)" if row.control else row.method


def _text(answer: Answers, key: str, method: str) -> str:
    index = answer.methods.index(method)
    return next((question.texts[index] for question in answer.questions if question.key == key), "")
