"""The reported number: which column of metrics.csv, at which round, and how it is written."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pfl_lightning.compare.experiment import Report, Select
from pfl_lightning.foundation.errors import ConfigError, require
from pfl_lightning.tasks.logged_sums import direction

COLUMN = re.compile(
    r"(?P<scope>all_|held_out_)?"
    r"(?:global_(?P<of_global>\w+?)|(?P<name>\w+?)_(?P<moment>before|after|finetuned))"
    r"(?P<average>_pooled|_worst10)?"
)
RECORDED = {
    "personal_count": "personal parameters, mean over the clients of the round",
    "personal_share": "share of personal parameters, mean over the clients of the round",
    "train_loss": "loss in local training, mean over its samples",
    "seconds": "seconds of the round, which depend on the machine",
    "up_mib": "MiB that a client of the round sends, on average",
    "down_mib": "MiB that a client of the round receives, on average",
}
"""The columns of a run other than tests."""
MOMENTS = {
    "before": "tested with the model that it would start its next visit with, before local training",
    "after": "tested with the outcome of its latest local training (clients that were never drawn do not count)",
    "finetuned": "tested with a copy of its model that was fine-tuned on its own training data",
    "global": "tested with the plain global model",
}
HELD_OUT = {
    "before": "tested with the model that the method gives it without training",
    "after": "tested after the local training of its first visit, which takes place after the last round",
    "finetuned": "tested with a copy of its model that was fine-tuned on its own training data",
}
"""The same for clients that never take part in training."""
AVERAGES = {
    "": "mean over {who}",
    "_pooled": "over the test samples of {who} together",
    "_worst10": "mean over the worst tenth of {who}",
}
SELECTIONS: dict[Select, str] = {
    "last": "after the last round",
    "best": "at the round with the best value on the test data, which flatters",
    "validation": "at the round that the validation data chose",
    "best_per_client": "with each client at its own best {when} on the test data, which flatters",
    "mean": "mean over all rounds",
}


@dataclass(frozen=True)
class Metric:
    """One column at one round of a run."""

    column: str
    select: Select
    name: str
    moment: str
    average: str
    everyone: bool
    """Whether evaluations record it, for all clients or for those that are held out."""
    higher: bool
    digits: int
    certain: bool = False
    """Whether the experiment or the task has said which direction is better. Otherwise its name tells."""
    held_out: bool = False
    """Whether the clients are those that never take part in training."""

    @property
    def percent(self) -> bool:
        """Whether values are fractions that people read in percent."""
        return "acc" in self.name.split("_") or "accuracy" in self.name

    @property
    def client_column(self) -> str:
        """The column of clients.csv with each client's own value."""
        return self.column.removesuffix(self.average) if self.average else self.column

    @property
    def validation_column(self) -> str:
        """The column with the same average on validation data. Only the model before training is tested on it."""
        return f"all_{self.name}_validation{self.average}"

    @property
    def label(self) -> str:
        """Name of the metric with its unit."""
        return "accuracy in %" if self.name == "acc" else f"{self.name} in %" if self.percent else self.name

    @property
    def short(self) -> str:
        """Moment, average and selection in a few words, for a column of the table."""
        who = "held out" if self.held_out else "" if self.everyone else "participants"
        words = [self.moment, self.average.strip("_"), who]
        words.append("" if self.select == "last" else self.select.replace("_", " "))
        return ", ".join(word for word in words if word)

    def definition(self) -> str:
        """The meaning of the number, in full, for the caption."""
        if self.column in RECORDED:
            return f"`{self.column}` {SELECTIONS[self.select]}: {RECORDED[self.column]}"
        per_client = self.select == "best_per_client"
        who = "all clients" if self.everyone or per_client else "the clients of the round"
        who = "the clients that never take part in training" if self.held_out else who
        average = AVERAGES[self.average].format(who=who)
        selection = SELECTIONS[self.select].format(when="evaluation" if self.everyone else "participation")
        moment = (HELD_OUT if self.held_out else MOMENTS)[self.moment]
        return f"{self.label} (`{self.column}`) {selection}: {average}, each {moment}"

    def scaled(self, value: float) -> float:
        """A value in the unit of the table."""
        return 100 * value if self.percent else value

    def text(self, value: float) -> str:
        """A value as the table shows it."""
        if math.isnan(value):
            return "nan"
        return f"{100 * value:.{self.digits}f}" if self.percent else f"{value:#.{max(1, self.digits)}g}".rstrip(".")

    def better(self, one: float, other: float) -> bool:
        """Whether the first value is strictly better."""
        return one > other if self.higher else one < other

    def best(self, values: list[float]) -> int:
        """Index of the first best value. NaN never wins."""
        sign = -1.0 if self.higher else 1.0
        return min(range(len(values)), key=lambda i: math.inf if math.isnan(values[i]) else sign * values[i])


def metric_from(report: Report, directions: Mapping[str, str], fine_tuned: bool, complete: bool = False) -> Metric:
    """The metric of a report, with defaults from the task.

    Args:
        report: of the experiment and the method.
        directions: the task's metrics, the main one first, with `higher` or `lower`.
        fine_tuned: whether the default is the fine-tuned model.
        complete: whether the task has no other metrics.
    """
    main = next(iter(directions), "acc")
    column = report.metric or f"all_{main}_{'finetuned' if fine_tuned else 'before'}"
    if column in RECORDED:
        require(report.select in (None, "last", "mean"), "report.select", report.select, f"last or mean for {column}")
        higher = report.better == "higher"
        digits = 4 if report.digits is None else report.digits
        return Metric(column, report.select or "last", column, "", "", False, higher, digits)
    match = COLUMN.fullmatch(column)
    if match is None:
        raise ConfigError(
            f"report.metric: {column!r} is not allowed; use a column of metrics.csv such as all_acc_before, "
            f"all_acc_after_pooled or all_global_acc, or {' | '.join(RECORDED)}"
        )
    name = match["name"] or match["of_global"]
    if name not in directions and complete:
        raise ConfigError(f"report.metric: {column} is not measured; the task has {' | '.join(directions)}")
    higher = (report.better or directions.get(name) or direction(name, None)) == "higher"
    percent = "acc" in name.split("_") or "accuracy" in name
    digits = report.digits if report.digits is not None else 1 if percent else 4
    moment, average = match["moment"] or "global", match["average"] or ""
    certain, select, scope = bool(report.better) or name in directions, report.select or "last", match["scope"]
    held_out = scope == "held_out_"
    if held_out:
        require(moment in HELD_OUT, "report.metric", column, f"{' | '.join(f'held_out_{name}_{m}' for m in HELD_OUT)}")
        fine = select == "last" or (moment != "after" and select != "best_per_client")
        require(fine, "report.select", select, f"last for {column}")
    return Metric(column, select, name, moment, average, bool(scope), higher, digits, certain, held_out)
