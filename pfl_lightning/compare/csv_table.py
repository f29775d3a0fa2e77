"""All numbers as CSV: one line per method and column of the grid."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from pfl_lightning.compare.questions import Answers
from pfl_lightning.compare.table import Table

HEAD = ("method", "column", "control", "reported", "mean", "deviation", "rank", "paper", "notes")


def csv_table(table: Table, answers: Sequence[Answers]) -> str:
    """Numbers in the table's unit with all their digits, questions and paired comparisons included."""
    keys = list(dict.fromkeys(question.key for answer in answers for question in answer.questions))
    references = list(dict.fromkeys(other for answer in answers for other in answer.references))
    paired = [f"{kind}_{other}" for other in references for kind in ("difference", "low", "high", "p_holm")]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*HEAD, *keys, *paired])
    for index, (label, answer) in enumerate(zip(table.columns, answers, strict=True)):
        for row in table.rows:
            place = row.places[index]
            notes = "; ".join(table.notes[mark] for mark in place.marks)
            control = "yes" if row.control else "no"
            numbers = [place.mean, place.deviation, place.rank]
            head = [row.method, label, control, row.reported, *numbers, place.paper, notes]
            writer.writerow([*head, *_answers(answer, row.method, keys), *_paired(answer, row.method, references)])
    return out.getvalue()


def _answers(answer: Answers, method: str, keys: Sequence[str]) -> list[float | None]:
    values = {question.key: question.values for question in answer.questions}
    index = answer.methods.index(method)
    return [values[key][index] if key in values else None for key in keys]


def _paired(answer: Answers, method: str, references: Sequence[str]) -> list[float | None]:
    found = {other: (result, p) for own, other, result, p in answer.comparisons if own == method}
    cells: list[float | None] = []
    for other in references:
        if other not in found:
            cells += [None] * 4
            continue
        result, p = found[other]
        cells += [answer.scale * end for end in (result.difference, result.low, result.high)] + [p]
    return cells
