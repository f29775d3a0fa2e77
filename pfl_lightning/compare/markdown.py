"""The tables as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from pfl_lightning.compare.questions import Answers
from pfl_lightning.compare.statistics import Paired
from pfl_lightning.compare.table import Place, Table
from pfl_lightning.compare.verdict import CAPTION, verdicts

QUESTIONS = (
    "Worst tenth: mean over the tenth of the clients with the worst values at the reported moment. Steps: gradient "
    "steps of local training, every model that a visit trains counted. To reach a value: until the reported column "
    "first has it at an evaluation, with every seed; — if it never does. Worse than Local: strictly worse than the "
    "same client with the same seed and net."
)
PAIRED = (
    "Mean difference over the clients, method minus reference, with its 95 % interval, and the p-value of a two-sided "
    "Wilcoxon signed-rank test after Holm's correction for all tests of this table. With one partition for all seeds a "
    "client's values are averaged over the seeds first. A method with another net is compared with the reference of "
    "that net. Itself alone: the same method with its collaboration switched off. Clients of a run share a global "
    "model, so few seeds mean wider errors than shown."
)


def markdown(table: Table, answers: Sequence[Answers]) -> str:
    """All tables with captions and footnotes."""
    parts = [table.caption, _main(table)]
    parts += [f"<sup>{letter}</sup> {_plain(text)}" for letter, text in table.notes.items()]
    for answer in answers:
        place = f" at {answer.column}" if answer.column else ""
        if answer.questions:
            header = ["method", *(question.title for question in answer.questions)]
            rows = [[m, *(q.texts[i] for q in answer.questions)] for i, m in enumerate(answer.methods)]
            parts += [f"**Clients and cost{place}.** {QUESTIONS}", _grid(header, rows)]
        if answer.comparisons:
            parts += [f"**Paired comparison{place}.** {PAIRED}", _paired(answer)]
        if lines := verdicts(answer):
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
        header += [label or "value", *(["paper"] if has_paper else [])]
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
    return text + (f" <sup>{','.join(place.marks)}</sup>" if place.marks else "")


def _paired(answer: Answers) -> str:
    found = {(method, other): (result, p) for method, other, result, p in answer.comparisons}
    methods = [m for m in answer.methods if any(pair[0] == m for pair in found)]
    rows = []
    for method in methods:
        pairs = [found.get((method, other)) for other in answer.references]
        texts = [paired_text(*pair, answer.scale, answer.digits) if pair else "" for pair in pairs]
        rows.append([method, *texts])
    return _grid(["method", *(f"against {other}" for other in answer.references)], rows)


def _grid(header: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1) -> str:
    line = ["---"] * text_columns + ["---:"] * (len(header) - text_columns)
    return "\n".join(f"| {' | '.join(map(_plain, cells))} |" for cells in [header, line, *rows])


def _plain(text: str) -> str:
    """Text that does not end a cell of the table."""
    return text.replace("|", "\\|").replace("\n", " ")
