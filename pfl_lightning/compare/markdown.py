"""The tables as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from pfl_lightning.compare.questions import Answers
from pfl_lightning.compare.statistics import Paired
from pfl_lightning.compare.table import Place, Table
from pfl_lightning.compare.verdict import CAPTION, verdicts

MEANINGS = {
    "worst_tenth": "Worst tenth: mean over the tenth of the clients with the worst values at the reported moment.",
    "spread": "Deviation over clients: standard deviation of their values.",
    "worse_than_local": "Worse than Local: strictly worse than the same client with the same seed and net.",
    "mib": "MiB sent: to and from all clients in all rounds.",
    "steps_per_visit": "Steps: gradient steps of local training, every model that a visit trains counted.",
    "mib_to_target": "To reach a value: all clients together, until the reported column first has it at an "
    "evaluation, with every seed; — if it never does.",
    "by_validation": "Round by validation: the value on test data at the round that validation data chose.",
    "best_on_test": "Best round on test: the best value at any evaluation, which flatters.",
}
"""Key of a question → text of its column."""
PAIRED = (
    "Mean difference over the clients, method minus reference, with its 95 % interval, and the p-value of a two-sided "
    "Wilcoxon signed-rank test after Holm's correction for all tests of this table. With one partition for all seeds a "
    "client's differences are averaged first, over the seeds in which both rows have a value for it. A method with "
    "another net is compared with the reference of that net. Itself alone: the same method with its collaboration "
    "switched off. Clients of a run share a global model, so few seeds mean wider errors than shown."
)


def markdown(table: Table, answers: Sequence[Answers]) -> str:
    """All tables with captions and footnotes."""
    parts = [table.caption, _main(table)]
    parts += [f"<sup>{letter}</sup> {_plain(text)}" for letter, text in table.notes.items()]
    for answer in answers:
        place = f" at {answer.column}" if answer.column else ""
        shown = {method: method + _letters(marks) for method, marks in table.marks(answer.column).items()}
        if answer.questions:
            header = ["method", *(question.title for question in answer.questions)]
            rows = [[shown[m], *(q.texts[i] for q in answer.questions)] for i, m in enumerate(answer.methods)]
            meanings = " ".join(MEANINGS[q.key] for q in answer.questions if q.key in MEANINGS)
            parts += [f"**Clients and cost{place}.** {meanings}", _grid(header, rows)]
        if answer.comparisons:
            header, rows = paired_rows(answer)
            parts += [f"**Paired comparison{place}.** {PAIRED}"]
            parts += [_grid(header, [[shown[method], *texts] for method, *texts in rows])]
        if lines := verdicts(answer, shown):
            parts += [CAPTION.format(place=place), "\n".join(f"- {line}" for line in lines)]
    return "\n\n".join(parts) + "\n"


def paired_text(result: Paired, p: float, scale: float, digits: int) -> str:
    """A difference with its interval and p-value."""
    low, high = (f"{scale * end:+.{digits}f}" for end in (result.low, result.high))
    return f"{scale * result.difference:+.{digits}f} [{low}, {high}], p {p_text(p)}"


def p_text(p: float) -> str:
    """A p-value with two digits, or an upper bound."""
    return "< 0.001" if p < 0.001 else f"= {p:.2g}"


def _main(table: Table) -> str:
    header = ["method", "reported"]
    for label, has_paper in zip(table.columns, table.has_paper, strict=True):
        header += [label or table.unit, *(["paper"] if has_paper else [])]
    rows = []
    for row in table.rows:
        cells = [f"{row.method} (control)" if row.control else row.method, row.reported]
        for place, has_paper in zip(row.places, table.has_paper, strict=True):
            cells += [_place(place), *([place.paper] if has_paper else [])]
        rows.append(cells)
    return _grid(header, rows, text_columns=2)


def _place(place: Place) -> str:
    text = place.text or "—"
    if place.rank == 1:
        text = f"**{text}**"
    elif place.rank == 2:
        text = f"<u>{text}</u>"
    return text + _letters(place.marks)


def _letters(marks: Sequence[str]) -> str:
    return f" <sup>{','.join(marks)}</sup>" if marks else ""


def paired_rows(answer: Answers) -> tuple[list[str], list[list[str]]]:
    """Titles and rows of the paired comparison. Each row begins with its method."""
    found = {(method, other): (result, p) for method, other, result, p in answer.comparisons}
    methods = [m for m in answer.methods if any(pair[0] == m for pair in found)]
    rows = []
    for method in methods:
        pairs = [found.get((method, other)) for other in answer.references]
        texts = [paired_text(*pair, answer.scale, answer.digits) if pair else "" for pair in pairs]
        rows.append([method, *texts])
    return ["method", *(f"against {other}" for other in answer.references)], rows


def _grid(header: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1) -> str:
    line = ["---"] * text_columns + ["---:"] * (len(header) - text_columns)
    return "\n".join(f"| {' | '.join(map(_plain, cells))} |" for cells in [header, line, *rows])


def _plain(text: str) -> str:
    """Text that does not end a cell of the table."""
    return text.replace("|", "\\|").replace("\n", " ")
