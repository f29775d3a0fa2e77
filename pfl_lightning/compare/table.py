"""The table of a comparison: mean ± deviation over seeds, ranks, marks for unlike entries, the paper's values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_lowercase

from pfl_lightning.compare.caption import build_caption
from pfl_lightning.compare.experiment import Experiment
from pfl_lightning.compare.likeness import Outcome, differences
from pfl_lightning.compare.statistics import mean_deviation


@dataclass(frozen=True)
class Place:
    """One value in the table."""

    text: str
    """Mean ± deviation, or empty."""
    rank: int | None = None
    """1 and 2 are set off. None: not ranked."""
    marks: tuple[str, ...] = ()
    """Letters of its footnotes."""
    paper: str = ""
    mean: float | None = None
    deviation: float | None = None
    """Both in the table's unit, with all their digits."""


@dataclass(frozen=True)
class Row:
    """A method in all columns."""

    method: str
    reported: str
    control: bool
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Table:
    """The main table."""

    name: str
    caption: str
    columns: tuple[str, ...]
    has_paper: tuple[bool, ...]
    rows: tuple[Row, ...]
    notes: Mapping[str, str]
    """Letter → footnote."""
    unit: str = "value"
    """The meaning and unit of all entries, if they are the same."""

    def marks(self, column: str) -> dict[str, tuple[str, ...]]:
        """Method → letters of its footnotes in a column."""
        index = self.columns.index(column)
        return {row.method: row.places[index].marks for row in self.rows}


def build_table(experiment: Experiment, outcomes: Sequence[Outcome]) -> Table:
    """Rank like with like, and mark the rest.

    Args:
        experiment: for labels, seeds, caption and the paper's values.
        outcomes: one per method and column, methods in the order of the rows.
    """
    columns = experiment.column_labels
    notes = _Notes()
    places: dict[tuple[str, str], Place] = {}
    for label in columns:
        column = [outcome for outcome in outcomes if outcome.entry.column == label]
        reasons = differences(column)
        ranks = _ranks(column, reasons)
        for outcome, reason, rank in zip(column, reasons, ranks, strict=True):
            paper = experiment.paper.get((outcome.entry.method, label), "")
            places[outcome.entry.method, label] = _place(outcome, reason, rank, notes, paper)
    methods = list(dict.fromkeys(outcome.entry.method for outcome in outcomes))
    first = {outcome.entry.method: outcome.entry for outcome in reversed(outcomes)}
    rows = [
        Row(method, first[method].metric.short, first[method].control, tuple(places[method, c] for c in columns))
        for method in methods
    ]
    has_paper = tuple(any(places[method, label].paper for method in methods) for label in columns)
    caption = build_caption(experiment, outcomes)
    units = {outcome.entry.metric.label for outcome in outcomes}
    unit = units.pop() if len(units) == 1 else "value"
    return Table(experiment.name, caption, tuple(columns), has_paper, tuple(rows), notes.texts, unit)


def _place(outcome: Outcome, reason: str, rank: int | None, notes: _Notes, paper: str) -> Place:
    entry, measured = outcome.entry, outcome.measurements
    marks = [notes.mark(reason)] if reason else []
    if entry.chosen:
        chosen = ", ".join(f"{key} = {value}" for key, value in entry.chosen.items())
        marks.append(notes.mark(f"chosen by validation: {chosen}"))
    if not measured:
        return Place("", None, tuple(marks), paper)
    if not outcome.complete:
        done = ", ".join(str(m.cell.seed) for m in measured)
        marks.append(notes.mark(f"incomplete: seed {done} of {', '.join(str(c.seed) for c in entry.cells)}"))
    mean, deviation = mean_deviation([m.value for m in measured])
    text = entry.metric.text(mean) + (f" ± {entry.metric.text(deviation)}" if deviation is not None else "")
    scaled = None if deviation is None else entry.metric.scaled(deviation)
    return Place(text, rank, tuple(marks), paper, entry.metric.scaled(mean), scaled)


def _ranks(column: Sequence[Outcome], reasons: Sequence[str]) -> list[int | None]:
    """Ranks from 1 among complete, like entries. Means that look equal in the table share a rank."""
    finest = max((outcome.entry.metric for outcome in column), key=lambda metric: metric.digits)
    means: dict[int, float] = {}
    for index, (outcome, reason) in enumerate(zip(column, reasons, strict=True)):
        if outcome.complete and not reason:
            mean, _ = mean_deviation([m.value for m in outcome.measurements])
            means[index] = float(finest.text(mean))
    if len(means) < 2:
        return [None] * len(column)
    better = {i: sum(finest.better(other, own) for other in means.values()) for i, own in means.items()}
    return [better[index] + 1 if index in better else None for index in range(len(column))]


class _Notes:
    """Footnotes in the order in which they are first needed."""

    def __init__(self) -> None:
        self._marks: dict[str, str] = {}

    def mark(self, text: str) -> str:
        """The letter of a footnote: a to z, then aa, ab, …"""
        number = len(self._marks)
        letters = ascii_lowercase[number % 26]
        while number >= 26:
            number = number // 26 - 1
            letters = ascii_lowercase[number % 26] + letters
        return self._marks.setdefault(text, letters)

    @property
    def texts(self) -> dict[str, str]:
        """Letter → footnote."""
        return {letter: text for text, letter in self._marks.items()}
