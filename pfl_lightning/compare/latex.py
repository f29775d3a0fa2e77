"""The tables as LaTeX with booktabs. Wide ones are shrunk to the width of the text, with graphicx."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from unicodedata import name

from pfl_lightning.compare.markdown import MEANINGS, PAIRED, paired_rows
from pfl_lightning.compare.questions import Answers
from pfl_lightning.compare.table import Place, Table

ESCAPES = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "[": "{[}",
    "*": "{*}",
    "±": r"$\pm$",
    "−": r"$-$",
    "—": "---",
    "…": r"\dots{}",
    "→": r"$\rightarrow$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "×": r"$\times$",
}
"""A bracket or a star at the begin of a row would be taken for an argument of the line break before it."""

WIDEST_TITLE = 10
"""Characters in a line of a title."""
GREEK = re.compile(r"GREEK (SMALL|CAPITAL) LETTER ([A-Z]+)")
MINUS = re.compile(r"(?<![\w.])-(?=\d)")
FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"


def escape(text: str) -> str:
    """Text that LaTeX prints as it is. `code` in backticks becomes typewriter."""
    pieces = re.split(r"`([^`]*)`", text)
    escaped = ["".join(map(_character, piece)) for piece in pieces]
    return "".join(rf"\texttt{{{piece}}}" if index % 2 else piece for index, piece in enumerate(escaped))


def _character(character: str) -> str:
    greek = GREEK.fullmatch(name(character, ""))
    if greek is None:
        return ESCAPES.get(character, character)
    word = greek[2].lower().replace("lamda", "lambda")
    return rf"$\{word if greek[1] == 'SMALL' else word.capitalize()}$"


def latex(table: Table, answers: Sequence[Answers]) -> str:
    """The main table, the questions and the paired comparison as floating tables. Needs booktabs and graphicx."""
    blocks = [_main(table)]
    for answer in answers:
        place = f" at {answer.column}" if answer.column else ""
        shown = {method: escape(method) + _letters(marks) for method, marks in table.marks(answer.column).items()}
        if answer.questions:
            header = ["method", *(question.title for question in answer.questions)]
            rows = [[m, *(q.texts[i] for q in answer.questions)] for i, m in enumerate(answer.methods)]
            meanings = " ".join(MEANINGS[q.key] for q in answer.questions if q.key in MEANINGS)
            blocks.append(_second(f"Clients and cost{place}. {meanings}", header, rows, shown))
        if answer.comparisons:
            blocks.append(_second(f"Paired comparison{place}. {PAIRED}", *paired_rows(answer), shown))
    return "% \\usepackage{booktabs,graphicx}\n" + "\n".join(blocks)


def _main(table: Table) -> str:
    header, alignment = ["method", "reported"], "ll"
    for label, has_paper in zip(table.columns, table.has_paper, strict=True):
        header += [label or table.unit, *(["paper"] if has_paper else [])]
        alignment += "rr" if has_paper else "r"
    groups: list[list[list[str]]] = [[], []]
    for row in table.rows:
        cells = [escape(row.method), escape(row.reported)]
        for place, has_paper in zip(row.places, table.has_paper, strict=True):
            cells += [_place(place), *([escape(place.paper)] if has_paper else [])]
        groups[row.control].append(cells)
    notes = [f"$^{{{letter}}}$ {escape(text)}" for letter, text in table.notes.items()]
    return _float(table.caption, alignment, header, [group for group in groups if group], r" \\ ".join(notes))


def _place(place: Place) -> str:
    text = escape(place.text or "—")
    if place.rank == 1:
        text = rf"\textbf{{{text}}}"
    elif place.rank == 2:
        text = rf"\underline{{{text}}}"
    return text + _letters(place.marks)


def _letters(marks: Sequence[str]) -> str:
    return f"$^{{{','.join(marks)}}}$" if marks else ""


def _second(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]], shown: Mapping[str, str]) -> str:
    """A table with a row for each method."""
    escaped = [[shown[method], *map(_entry, texts)] for method, *texts in rows]
    return _float(caption, "l" + "r" * (len(header) - 1), header, [escaped], "")


def _entry(text: str) -> str:
    """A difference has its interval in one line and its p-value in the next."""
    difference, comma, p = text.partition("], p")
    lines = [f"{difference}]", f"p{p}"] if comma else [text]
    return _lines([escape(MINUS.sub("−", line)) for line in lines], "t")


def _title(text: str) -> str:
    return _lines([escape(line) for line in textwrap.wrap(text, WIDEST_TITLE, break_long_words=False)], "b")


def _lines(lines: Sequence[str], place: str) -> str:
    """A cell with several lines. The one at `place`, top or bottom, is level with the row."""
    if len(lines) < 2:
        return "".join(lines)
    return rf"\begin{{tabular}}[{place}]{{@{{}}r@{{}}}}" + r" \\ ".join(lines) + r"\end{tabular}"


def _float(
    caption: str, alignment: str, header: Sequence[str], groups: Sequence[Sequence[Sequence[str]]], notes: str
) -> str:
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape(caption)}}}",
        r"\smallskip",
        FIT,
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        " & ".join(_title(title) for title in header) + r" \\",
    ]
    for group in groups:
        lines += [r"\midrule", *(" & ".join(cells) + r" \\" for cells in group)]
    lines += [r"\bottomrule", r"\end{tabular}}"]
    if notes:
        lines += [r"\par\smallskip", rf"\parbox{{\linewidth}}{{\footnotesize {notes}}}"]
    return "\n".join([*lines, r"\end{table}", ""])
