"""What a run has shown so far: each round becomes a record, and the totals, the best and the latest values are kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pfl_lightning import metrics
from pfl_lightning.ledger import Ledger
from pfl_lightning.monitor import RoundRecord
from pfl_lightning.tasks.task import Task
from pfl_lightning.vector import Layout

FACTS = ("loss_sum", "samples", "up_bytes", "seconds", "down_bytes")
MOMENTS = ("before", "after")
ALL_MOMENTS = ("before", "finetuned", "global")


class History:
    """Turns the clients' sums into the columns of metrics.csv.

    `before` and `after` are a participant's test before and after its local training of this round. In an evaluation
    (`all_…`) every client is tested: `all_…_before` with the model it would start from now, `all_…_after` with the
    outcome of its own latest local training, whenever that was (clients never drawn have none and do not count),
    `all_…_finetuned` with a throw-away copy that was trained first, `all_global_…` with the plain global model.
    """

    def __init__(self, task: Task, layout: Layout, num_clients: int, finetuned: bool) -> None:
        self.task, self.layout, self.num_clients, self.finetuned = task, layout, num_clients, finetuned
        self.ledger = Ledger()
        self.best = metrics.Best(task)
        self.latest_after = np.full((num_clients, len(task.sums)), np.nan)
        self.samples = 0
        self.seconds = 0.0
        self.personal_count = 0.0
        self.phases: dict[str, float] = {}
        """Seconds per phase on this rank, since the run was started or resumed."""

    @property
    def row_width(self) -> int:
        """Length of what a visit reports: the sums at two moments, the facts, personal entries per tensor."""
        return 2 * len(self.task.sums) + len(FACTS) + len(self.layout.parameter_spans)

    def visit_seconds(self, rows: np.ndarray) -> list[float]:
        """How long each of the visits took."""
        seconds: list[float] = rows[:, 2 * len(self.task.sums) + FACTS.index("seconds")].tolist()
        return seconds

    def columns(self) -> list[str]:
        """The scalars of a record, in the order of metrics.csv."""
        names = list(self.task.better)
        main = [f"{n}_{m}" for n in names for m in MOMENTS]
        kinds = ["", "_pooled", "_worst10"]
        everyone = [m for m in ("before", "after", "finetuned") if m != "finetuned" or self.finetuned]
        return [
            "seconds", "samples", "train_loss",
            *main, *(f"{c}_pooled" for c in main), *(f"{c}_worst10" for c in main),
            "personal_share", "personal_count", "up_bytes", "down_bytes",
            *(f"all_{n}_{m}{k}" for n in names for m in everyone for k in kinds),
            *(f"all_global_{n}{k}" for n in names for k in kinds),
        ]  # fmt: skip

    def enter_round(self, round_: int, cohort: Sequence[int], rows: np.ndarray) -> RoundRecord:
        """A record of what the participants reported: one row each, `row_width` wide."""
        k = len(self.task.sums)
        tables = {moment: rows[:, i * k : (i + 1) * k] for i, moment in enumerate(MOMENTS)}
        loss_sum, samples, up, _, down = rows[:, 2 * k : 2 * k + len(FACTS)].sum(axis=0)
        personal = rows[:, 2 * k + len(FACTS) :].mean(axis=0)
        self.personal_count = float(personal.sum())
        self.samples += int(samples)
        self.ledger.add(int(up), int(down))
        scalars = {
            "samples": int(samples),
            "train_loss": float(loss_sum / samples) if samples else math.nan,
            "personal_share": self.personal_count / self.layout.num_parameters,
            "personal_count": self.personal_count,
            "up_bytes": int(up),
            "down_bytes": int(down),
        }
        spread: dict[str, np.ndarray] = {}
        for moment, table in tables.items():
            scalars |= metrics.summarize(self.task, table, moment)
            spread |= {f"{name}_{moment}": v for name, v in metrics.per_client(self.task, table).items()}
            self.best.enter_clients(moment, table, self.num_clients, cohort)
        self.latest_after[np.array(cohort)] = tables["after"]
        sizes = [span.stop - span.start for span in self.layout.parameter_spans]
        layers = {s.name: float(p / n) for s, p, n in zip(self.layout.parameter_spans, personal, sizes, strict=True)}
        return RoundRecord(round_, scalars, spread, layers, {})

    def enter_evaluation(self, record: RoundRecord, rows: np.ndarray) -> None:
        """Add an evaluation to the round's record: one row per client, the sums at each of `ALL_MOMENTS`."""
        k = len(self.task.sums)
        tables = {moment: rows[:, i * k : (i + 1) * k] for i, moment in enumerate(ALL_MOMENTS)}
        tables["after"] = self.latest_after
        for moment in ("before", *(["finetuned"] if self.finetuned else [])):
            self.best.enter_clients(moment, tables[moment], self.num_clients)
        for moment in ("before", "after", *(["finetuned"] if self.finetuned else [])):
            columns = metrics.summarize(self.task, tables[moment], moment)
            record.scalars |= {f"all_{name}": value for name, value in columns.items()}
            values = metrics.per_client(self.task, tables[moment])
            record.per_client |= {f"all_{name}_{moment}": v[~np.isnan(v)] for name, v in values.items()}
        for name in self.task.better:
            columns = metrics.summarize(self.task, tables["global"], "global")
            for kind in ("", "_pooled", "_worst10"):
                record.scalars[f"all_global_{name}{kind}"] = columns[f"{name}_global{kind}"]

    def close_round(self, record: RoundRecord, seconds: float, phases: dict[str, float]) -> None:
        """Enter the time, order the columns and note what was best."""
        self.seconds += seconds
        record.scalars["seconds"] = seconds
        record.scalars = {name: record.scalars[name] for name in self.columns() if name in record.scalars}
        record.phases = phases
        for phase, taken in phases.items():
            self.phases[phase] = self.phases.get(phase, 0.0) + taken
        self.best.enter_columns(record.scalars)

    def arrays(self) -> dict[str, np.ndarray]:
        """What a checkpoint needs of it, one row or value per client."""
        return {"latest_after": self.latest_after, **{f"best/{key}": v for key, v in self.best.clients.items()}}

    def numbers(self) -> dict[str, Any]:
        """The rest of what a checkpoint needs; it survives JSON unchanged."""
        return {
            "up_bytes": self.ledger.up,
            "down_bytes": self.ledger.down,
            "samples": self.samples,
            "seconds": self.seconds,
            "personal_count": self.personal_count,
            "last": dict(self.best.last),
            "best": dict(self.best.best),
        }

    def restore(self, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, Any]) -> None:
        """Continue from what `arrays` and `numbers` returned."""
        self.latest_after = arrays["latest_after"]
        clients = {key.removeprefix("best/"): v for key, v in arrays.items() if key.startswith("best/")}
        self.best = metrics.Best(self.task, dict(numbers["last"]), dict(numbers["best"]), clients)
        self.ledger = Ledger(numbers["up_bytes"], numbers["down_bytes"])
        self.samples, self.seconds = numbers["samples"], numbers["seconds"]
        self.personal_count = numbers["personal_count"]

    def summary(self) -> dict[str, Any]:
        """Totals and last/best/best-per-client, for summary.json."""
        return {
            "personal_count": self.personal_count,
            "samples_per_second": self.samples / self.seconds if self.seconds else 0.0,
            "seconds": self.seconds,
            "up_bytes": self.ledger.up,
            "down_bytes": self.ledger.down,
            **self.best.summary(),
        }
