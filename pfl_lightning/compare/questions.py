"""The questions of the field: who is left behind, how much does it cost, and is the difference real?"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from pfl_lightning.compare.experiment import Experiment
from pfl_lightning.compare.likeness import Outcome
from pfl_lightning.compare.measurement import Measurement
from pfl_lightning.compare.pairing import algorithm_of, compare_pairs, counterpart, same_client_values
from pfl_lightning.compare.statistics import Paired, mean_deviation, worse_share

LOCAL, TARGET_METHOD = "Local", "FedAvg"
REFERENCES = ("Local", "FedAvg", "FedAvg+FT")
"""Methods that every other is compared with, also where they are not controls."""
MIB = 2**20


@dataclass(frozen=True)
class Question:
    """A column of the second table."""

    key: str
    title: str
    values: tuple[float | None, ...]
    """One per method, in the table's unit."""
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Answers:
    """The answers for one column of the grid."""

    column: str
    methods: tuple[str, ...]
    questions: tuple[Question, ...]
    """Only those that the runs can answer."""
    references: tuple[str, ...]
    comparisons: tuple[tuple[str, str, Paired, float], ...]
    """Method, reference, result, p-value after Holm's correction."""
    scale: float = 1.0
    """From recorded values to the table's unit."""
    digits: int = 4
    higher: bool = True
    """Whether higher values are better."""


def answer(experiment: Experiment, outcomes: Sequence[Outcome], label: str, best: Collection[str] = ()) -> Answers:
    """Answer the questions that the finished cells of a column allow.

    Args:
        experiment: for the value to reach.
        outcomes: of all columns.
        label: of the column.
        best: the methods that rank first. The others are compared with them and with the controls.
    """
    column = [outcome for outcome in outcomes if outcome.entry.column == label]
    methods = tuple(outcome.entry.method for outcome in column)
    local = _local_row(column)
    target = _target(experiment, column)
    questions = [
        _mean("worst_tenth", "worst tenth", column, lambda m: m.metric.scaled(m.worst_tenth)),
        _mean("spread", "deviation over clients", column, lambda m: m.metric.scaled(m.spread)),
        _negative_transfer(column, local),
        _mean("mib", "MiB sent", column, lambda m: m.bytes_sent / MIB, _amount),
        _mean("steps_per_visit", "steps per visit", column, lambda m: m.steps_per_visit, "{:,.1f}".format),
        *(_cost(column, target) if target is not None else []),
        _mean("by_validation", "round by validation", column, lambda m: m.metric.scaled(m.by_validation)),
        _mean("best_on_test", "best round on test", column, lambda m: m.metric.scaled(m.best_on_test)),
    ]
    answered = tuple(q for q in questions if any(value is not None for value in q.values))
    wanted = {*REFERENCES, *best}
    references = [outcome for outcome in column if outcome.entry.method in wanted or outcome is local]
    metric = column[0].entry.metric
    compared = compare_pairs(column, references)
    names = tuple(dict.fromkeys([*(o.entry.method for o in references), *(other for _, other, _, _ in compared)]))
    return Answers(label, methods, answered, names, compared, metric.scaled(1.0), metric.digits, metric.higher)


def _local_row(column: Sequence[Outcome]) -> Outcome | None:
    """The row named Local, else the first one of this method: papers call it Local-Only or Separate."""
    found = [outcome for outcome in column if algorithm_of(outcome) == LOCAL]
    return next((outcome for outcome in found if outcome.entry.method == LOCAL), found[0] if found else None)


def _mean(
    key: str,
    title: str,
    column: Sequence[Outcome],
    number: Callable[[Measurement], float],
    form: Callable[[float], str] | None = None,
) -> Question:
    """Mean over the seeds."""
    values = []
    for outcome in column:
        known = [value for m in outcome.measurements if not math.isnan(value := number(m))]
        values.append(mean_deviation(known)[0] if known else None)
    return Question(key, title, tuple(values), tuple(_text(o, v, form) for o, v in zip(column, values, strict=True)))


def _negative_transfer(column: Sequence[Outcome], local: Outcome | None) -> Question:
    values: list[float | None] = []
    for outcome in column:
        other = counterpart(outcome, local, column) if local else None
        pair = same_client_values(outcome, other) if other else None
        values.append(None if pair is None else 100 * worse_share(*pair, outcome.entry.metric.higher))
    texts = tuple("" if value is None else f"{value:.0f}" for value in values)
    return Question("worse_than_local", "% of clients worse than Local", tuple(values), texts)


def _target(experiment: Experiment, column: Sequence[Outcome]) -> float | None:
    """The value to reach: as the experiment says, else FedAvg's result with its worst seed."""
    if experiment.report.target is not None:
        percent = bool(column) and column[0].entry.metric.percent
        return experiment.report.target / (100 if percent else 1)
    reference = next((o for o in column if o.entry.method == TARGET_METHOD and o.measurements), None)
    if reference is None:
        return None
    values = [m.value for m in reference.measurements]
    return min(values) if reference.entry.metric.higher else max(values)


def _cost(column: Sequence[Outcome], target: float) -> list[Question]:
    """Bytes and gradient steps to reach a value. Methods that do not reach it with every seed have none."""
    metric = column[0].entry.metric
    mib: list[float | None] = []
    steps: list[float | None] = []
    for outcome in column:
        costs = [m.cost_of(target) for m in outcome.measurements if m.metric.name == metric.name and m.is_curve]
        reached = [cost for cost in costs if cost is not None]
        whole = bool(costs) and len(reached) == len(costs)
        mib.append(mean_deviation([cost[0] / MIB for cost in reached])[0] if whole else None)
        steps.append(mean_deviation([cost[1] for cost in reached])[0] if whole else None)
    goal = metric.text(target) + (" %" if metric.percent else "")
    measured = [any(m.is_curve for m in outcome.measurements) for outcome in column]
    texts = [["—" if has and value is None else _amount(value) if value is not None else "" for value, has in
              zip(values, measured, strict=True)] for values in (mib, steps)]  # fmt: skip
    return [
        Question("mib_to_target", f"MiB to reach {goal}", tuple(mib), tuple(texts[0])),
        Question("steps_to_target", f"steps to reach {goal}", tuple(steps), tuple(texts[1])),
    ]


def _text(outcome: Outcome, value: float | None, form: Callable[[float], str] | None) -> str:
    if value is None:
        return ""
    metric = outcome.entry.metric
    return form(value) if form else metric.text(value / (100 if metric.percent else 1))


def _amount(value: float) -> str:
    """A large number without a fraction, a small one with two digits."""
    return f"{value:,.0f}" if value >= 10 or not value else f"{value:.2g}"
